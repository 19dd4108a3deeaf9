"""Raw kernels of the Numba back end: matrix products, adaLN, gated residual and attention, without autograd.

`c/matrix.py` and `c/vector.py` document the same functions. `vector.py` contains the elementwise kernels.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features, M = N * T rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dithc.engine.hcops.checks import (
    array,
    check_heads,
    check_linear,
    check_shape,
    check_stream,
    condition,
    fp32,
    typed,
)
from dithc.engine.hcops.numba import loops, matrix_loops
from dithc.engine.hcops.numba.compiler import BF16, COLUMNS, FP32, ROUNDED, ROWS, Array, Either
from dithc.engine.hcops.numba.loops import TOKENS_PER_BLOCK
from dithc.engine.hcops.numba.threads import ELEMENTS_PER_THREAD, num_threads, run, spread

Needs = Sequence[bool]
NO_FP32, NO_BF16 = np.empty(0, np.float32), np.empty(0, np.uint16)
ABSENT: Either = (NO_FP32, NO_BF16, FP32)
# Multiply-adds that take as long as one element of a memory-bound loop (measured: 0.01 ns and 0.33 ns).
PRODUCTS_PER_ELEMENT = 32
# Multiply-adds that take as long as packing one element (measured: 0.4 ns).
PRODUCTS_PER_PACKED = 48


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    _, features, _ = check_linear("linear", x, weight, bias)
    y = torch.empty((*x.shape[:-1], features), dtype=dtype)
    _forward_product("linear", x, weight, bias, y, dtype)
    return y  # (..., F)


def linear_gelu_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *, keep: bool = True
) -> tuple[Tensor, Tensor | None]:
    _, features, _ = check_linear("linear_gelu", x, weight, bias)
    y = torch.empty((*x.shape[:-1], features), dtype=dtype)
    before = torch.empty_like(y) if keep else None
    _forward_product("linear_gelu", x, weight, bias, y, dtype, before=_optional(before), use_gelu=True)
    return y, before  # (..., F) each


def linear_gate_residual_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gate: Tensor,
    residual: Tensor,
    dtype: torch.dtype,
    *,
    keep: bool = True,
) -> tuple[Tensor, Tensor | None]:
    op = "linear_gate_residual"
    _, features, _ = check_linear(op, x, weight, bias)
    n, t, _ = check_stream(op, "x", x)
    check_shape(op, (n, t, features), residual=residual)
    out_type = torch.promote_types(torch.promote_types(residual.dtype, gate.dtype), dtype)
    out, y = torch.empty(residual.shape, dtype=out_type), torch.empty(residual.shape, dtype=dtype) if keep else None
    rows = _condition(op, "gate", gate, (n, features))
    epilogue = {"before": _optional(y), "residual": either(op, "residual", residual), "gate": rows, "rows_per_gate": t}
    _forward_product(op, x, weight, bias, out, dtype, **epilogue)
    return out, y  # (N, T, F) each


def linear_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    has_bias: bool,
    needs: Needs,
    out: Tensor | None,
    *,
    accumulate: bool = False,
    gelu_at: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    op, compute = "linear_backward", dy.dtype
    features, width = weight.shape
    rows = dy.shape[:-1].numel()
    check_shape(op, (*x.shape[:-1], features), dy=dy)
    check_shape(op, x.shape, gelu_at=gelu_at)
    if gelu_at is not None:
        typed(op, "gelu_at", gelu_at, x.dtype)
    a = either(op, "dy", dy, compute)
    dx = dw = db = None
    if needs[0]:
        dx = torch.empty_like(x)
        b = either(op, "weight", weight, compute)
        slope = ABSENT if gelu_at is None else either(op, "gelu_at", gelu_at)
        _product((rows, width, features), (a, features, 1), (b, 1, width), either(op, "x", dx), gelu_at=slope)
    if needs[1]:
        check_shape(op, (features, width), out=out)
        if out is not None:
            fp32(op, "out", out)
        dw = torch.empty((features, width)) if out is None else out
        shape, b = (features, width, rows), either(op, "x", x, compute)
        _product(shape, (a, 1, features), (b, 1, width), either(op, "out", dw), accumulate=accumulate)
    if has_bias and needs[2]:
        blocks = -(-rows // TOKENS_PER_BLOCK)
        sums = np.empty(blocks * features, np.float32)
        run(loops.column_sums, blocks, rows, features, flat(op, "dy", dy), sums, elements=dy.numel())
        db = add_blocks(sums, (1, blocks, features))[0]
    return dx, dw, db  # (..., D), (F, D), (F)


def adaln_forward(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float, dtype: torch.dtype, *, op: str = "adaln"
) -> tuple[Tensor, Tensor | None, Tensor]:
    n, t, d = check_stream(op, "x", x)
    out, rstd = torch.empty(x.shape, dtype=dtype), torch.empty((n, t))
    mean = None if op == "adarms" else torch.empty((n, t))
    shifts, scales = _condition(op, "shift", shift, (n, d)), _condition(op, "scale", scale, (n, d))
    source, *results = flats(op, x=x, out=out, mean=mean, rstd=rstd)
    run(loops.adaln_forward, n * t, t, d, np.float32(eps), source, shifts, scales, *results, elements=x.numel())
    return out, mean, rstd  # (N, T, D), (N, T), (N, T)


def gate_residual_forward(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    op = "gate_residual"
    n, t, d = check_stream(op, "x", x)
    check_shape(op, (n, t, d), y=y)
    out = torch.empty(x.shape, dtype=torch.promote_types(torch.promote_types(x.dtype, y.dtype), gate.dtype))
    rows = _condition(op, "gate", gate, (n, d))
    source, *arrays = flats(op, x=x, y=y, out=out)
    run(loops.gate_residual_forward, n * t, t, d, source, rows, *arrays, elements=x.numel())
    return out  # (N, T, D)


def gate_residual_backward(dout: Tensor, gate: Tensor, y: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    op = "gate_residual_backward"
    n, t, d = check_stream(op, "dout", dout)
    check_shape(op, (n, t, d), y=y)
    dy, blocks = torch.empty(y.shape, dtype=dtype), -(-t // TOKENS_PER_BLOCK)
    dgate = np.empty(n * blocks * d, np.float32)
    rows = _condition(op, "gate", gate, (n, d))
    source, *arrays = flats(op, dout=dout, y=y, dy=dy)
    run(loops.gate_residual_backward, n * blocks, t, d, source, rows, *arrays, dgate, elements=y.numel())
    return dy, add_blocks(dgate, (n, blocks, d)).to(gate.dtype)  # (N, T, D), (N, D)


def attention_forward(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    op = "attention"
    n, t, d, k = check_heads(op, qkv, num_heads)
    out, lse = torch.empty((n, t, d), dtype=qkv.dtype), torch.empty((n, num_heads, t))
    arrays, elements = flats(op, qkv=qkv, out=out, lse=lse), 2 * n * t * t * d // PRODUCTS_PER_ELEMENT
    run(matrix_loops.attention_forward, n * num_heads, t, num_heads, k, *arrays, elements=elements)
    return out, lse


def attention_backward(dout: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, num_heads: int) -> Tensor:
    op = "attention_backward"
    n, t, d, k = check_heads(op, qkv, num_heads)
    check_shape(op, (n, t, d), dout=dout, out=out)
    check_shape(op, (n, num_heads, t), lse=lse)
    fp32(op, "lse", lse)
    dqkv = torch.empty_like(qkv)
    arrays = flats(op, dout=dout, qkv=qkv, out=out, lse=lse, dqkv=dqkv)
    elements = 5 * n * t * t * d // PRODUCTS_PER_ELEMENT
    run(matrix_loops.attention_backward, n * num_heads, t, num_heads, k, *arrays, elements=elements)
    return dqkv  # (N, T, 3D)


def flat(op: str, name: str, tensor: Tensor) -> Array:
    """Return a tensor's memory as one row of fp32 or of bf16 bits; raise UserError as `checks.array`."""
    array(op, name, tensor)
    row = tensor.detach().reshape(-1)
    bits: Array = (row.view(torch.uint16) if row.dtype == torch.bfloat16 else row).numpy()
    return bits


def flats(op: str, **tensors: Tensor | None) -> list[Array]:
    """Return `flat` of each tensor; empty arrays for None."""
    return [NO_FP32 if tensor is None else flat(op, name, tensor) for name, tensor in tensors.items()]


def either(op: str, name: str, tensor: Tensor, compute: torch.dtype = torch.float32) -> Either:
    """Return the tensor for loops that select its type at run time. Products of bf16 round fp32 elements."""
    row = flat(op, name, tensor)
    if tensor.dtype == torch.bfloat16:
        return NO_FP32, row, BF16  # type: ignore[return-value]
    return row, NO_BF16, ROUNDED if compute == torch.bfloat16 else FP32  # type: ignore[return-value]


def add_blocks(sums: NDArray[np.float32], shape: tuple[int, int, int]) -> Tensor:
    """Add rows of partial sums (groups, blocks, width) in order; return (groups, width)."""
    groups, blocks, width = shape
    out = torch.empty((groups, width))
    elements = sums.size if groups > 1 else ELEMENTS_PER_THREAD
    run(loops.add_blocks, groups, blocks, width, sums, out.view(-1).numpy(), elements=elements)
    return out


def adaln_backward(
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor | None, rstd: Tensor, dstream: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    op = "adaln_backward"
    n, t, d = check_stream(op, "x", x)
    check_shape(op, (n, t, d), dy=dy, dstream=dstream)
    check_shape(op, (n, t), mean=mean, rstd=rstd)
    for name, statistic in (("mean", mean), ("rstd", rstd)):
        if statistic is not None:
            fp32(op, name, statistic)
    dx, blocks = torch.empty_like(x), -(-t // TOKENS_PER_BLOCK)
    dshift, dscale = np.empty(n * blocks * d, np.float32), np.empty(n * blocks * d, np.float32)
    scales, sources = _condition(op, "scale", scale, (n, d)), flats(op, dy=dy, x=x)
    arrays = flats(op, mean=mean, rstd=rstd, dstream=dstream, dx=dx)
    run(loops.adaln_backward, n * blocks, t, d, *sources, scales, *arrays, dshift, dscale, elements=x.numel())
    return dx, add_blocks(dshift, (n, blocks, d)).to(scale.dtype), add_blocks(dscale, (n, blocks, d)).to(scale.dtype)


def _condition(op: str, name: str, tensor: Tensor, shape: tuple[int, int]) -> NDArray[np.float32]:
    condition(op, name, tensor, shape)
    rows: NDArray[np.float32] = tensor.detach().float().reshape(-1).numpy()  # N * D numbers, so a copy is cheap
    return rows


def _optional(tensor: Tensor | None) -> Either:
    return ABSENT if tensor is None else either("linear", "before", tensor)


def _forward_product(
    op: str, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, compute: torch.dtype, **epilogue: Any
) -> None:
    """Compute x W^T + bias, with the other ends of `_product`."""
    features, width = weight.shape
    if bias is not None:
        array(op, "bias", bias)
        epilogue["bias"] = bias.detach().float().numpy()
    a, b = (either(op, "x", x, compute), width, 1), (either(op, "weight", weight, compute), width, 1)
    _product((out.shape[:-1].numel(), features, width), a, b, either(op, "out", out), **epilogue)


def _product(
    shape: tuple[int, int, int],
    a: tuple[Either, int, int],
    b: tuple[Either, int, int],
    out: Either,
    *,
    accumulate: bool = False,
    before: Either = ABSENT,
    gelu_at: Either = ABSENT,
    residual: Either = ABSENT,
    bias: NDArray[np.float32] = NO_FP32,
    gate: NDArray[np.float32] = NO_FP32,
    rows_per_gate: int = 1,
    use_gelu: bool = False,
) -> None:
    """Compute out (m, n) = A (m, k) B (k, n); `a` and `b` include the strides of rows or columns, and of depth."""
    m, n, k = shape
    if m * n == 0:
        return
    is_deep = k > matrix_loops.DEPTH_PACKED and out[2] == BF16
    sums = np.empty(m * n, np.float32) if is_deep else out[0]
    arguments = (n, k, *a, *b, sums, accumulate, out, before, gelu_at, residual, bias, gate, rows_per_gate, use_gelu)
    matrix_loops.gemm.prepare(0, m, 0, n, *arguments)
    rows, columns = _cut(m, n, num_threads(m * n * k // PRODUCTS_PER_ELEMENT))
    tasks: list[Callable[[], None]] = [
        partial(matrix_loops.gemm, i, min(i + rows, m), j, min(j + columns, n), *arguments)
        for i in range(0, m, rows)
        for j in range(0, n, columns)
    ]
    spread(tasks)


def _cut(m: int, n: int, threads: int) -> tuple[int, int]:
    """Return rows and columns of each thread's part of C, with the lowest cost of multiplying and packing."""
    best = (m * n + PRODUCTS_PER_PACKED * (m + n), m, n)
    for row_cuts in range(1, threads + 1):
        rows = -(-m // (row_cuts * ROWS)) * ROWS
        columns = -(-n // (threads // row_cuts * COLUMNS)) * COLUMNS
        best = min(best, (rows * columns + PRODUCTS_PER_PACKED * (rows + columns), rows, columns))
    return best[1:]
