"""Raw memory-bound kernels of the Numba back end: functions of single elements, of rows, and of all parameters.

`c/vector.py` documents the same functions. torch computes operators that a DiT calls rarely: exp, tanh, softmax, the
loss, and the order of patches.

Legend: N batch, T tokens, E width of a hidden layer.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dithc.engine.hcops import reference
from dithc.engine.hcops.checks import AdamwTensors, check_halves, check_patches, check_samples, check_shape, fp32, typed
from dithc.engine.hcops.numba import loops
from dithc.engine.hcops.numba.compiler import KernelEntry
from dithc.engine.hcops.numba.loops import ADAMW_BLOCK, ELEMENTS_PER_BLOCK
from dithc.engine.hcops.numba.operators import NO_BF16, NO_FP32, flat, flats
from dithc.engine.hcops.numba.threads import num_threads, run, spread
from dithc.engine.native import AdamwSettings

# Cuts between threads are multiples of this number. 4,096 elements fill pages exactly, so that only one thread touches a
# page first.
ELEMENTS_PER_CUT = 4096
FUNCTIONS = ("gelu", "silu")


def _elements(kernel: KernelEntry, count: int, *arguments: Any) -> None:
    run(kernel, count, *arguments, elements=count, step=ELEMENTS_PER_CUT)


def _map(op: str, kernel: KernelEntry, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _elements(kernel, x.numel(), *flats(op, x=x, out=out))
    return out


def _map_backward(op: str, kernel: KernelEntry, dy: Tensor, x: Tensor) -> Tensor:
    check_shape(op, x.shape, dy=dy)
    dx = torch.empty_like(x)
    _elements(kernel, x.numel(), *flats(op, dy=dy, x=x, dx=dx))
    return dx


gelu_forward, silu_forward = (partial(_map, name, getattr(loops, f"{name}_forward")) for name in FUNCTIONS)
gelu_backward, silu_backward = (
    partial(_map_backward, f"{name}_backward", getattr(loops, f"{name}_backward")) for name in FUNCTIONS
)
exp_forward, tanh_forward, softmax_forward = reference.exp, reference.tanh, reference.softmax
exp_backward, tanh_backward = torch.mul, torch.ops.aten.tanh_backward


def softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    return torch._softmax_backward_data(dy, y, -1, y.dtype)


def swiglu_forward(x: Tensor) -> Tensor:
    op = "swiglu"
    n, t, e = check_halves(op, "x", x)
    out = x.new_empty((n, t, e))
    run(loops.swiglu_forward, n * t, e, *flats(op, x=x, out=out), elements=x.numel())
    return out  # (N, T, E)


def swiglu_backward(dy: Tensor, x: Tensor) -> Tensor:
    op = "swiglu_backward"
    n, t, e = check_halves(op, "x", x)
    check_shape(op, (n, t, e), dy=dy)
    dx = torch.empty_like(x)
    run(loops.swiglu_backward, n * t, e, *flats(op, dy=dy, x=x, dx=dx), elements=x.numel())
    return dx  # (N, T, 2E)


def scale_add_forward(x: Tensor, y: Tensor | None, alpha: float, beta: float) -> Tensor:
    op, source = "scale_add", flat("scale_add", "x", x)
    out = torch.empty(x.shape, dtype=x.dtype if y is None else torch.promote_types(x.dtype, y.dtype))
    target = flat(op, "out", out)
    if y is None:
        _elements(loops.scale, x.numel(), np.float32(alpha), source, target)
    else:
        check_shape(op, x.shape, y=y)
        addend = flat(op, "y", y)
        _elements(loops.scale_add, x.numel(), np.float32(alpha), source, np.float32(beta), addend, target)
    return out


def mse_forward(x: Tensor, y: Tensor) -> Tensor:
    check_shape("mse", x.shape, y=y)
    return (x.double() - y.double()).square().view(check_samples("mse", x)).mean(1).float()  # (N)


def mse_backward(dout: Tensor, x: Tensor, y: Tensor) -> Tensor:
    op = "mse_backward"
    check_shape(op, x.shape, y=y)
    check_shape(op, x.shape[:1], dout=dout)
    rows, columns = check_samples(op, x)
    factor = dout * (2 / max(columns, 1))  # (N)
    return (factor.view(rows, 1) * (x.float() - y.float()).view(rows, columns)).to(x.dtype).view(x.shape)


def patchify_forward(image: Tensor, p: int, order: int) -> Tensor:
    check_patches("patchify", "image", image, p, order)
    return reference.patchify(image, p, order).clone()  # (N, T, C*p*p), never a view


def unpatchify_forward(patches: Tensor, rows: int, p: int, order: int) -> Tensor:
    check_patches("unpatchify", "patches", patches, p, order, rows=rows)
    return reference.unpatchify(patches, rows, p, order).clone()  # (N, C, height, width), never a view


def sum_of_squares_forward(tensors: Sequence[Tensor]) -> float:
    total = 0.0
    for index, tensor in enumerate(tensors):
        fp32("sum_of_squares", f"tensors[{index}]", tensor)
        sums = np.empty(-(-tensor.numel() // ELEMENTS_PER_BLOCK))
        source = flat("sum_of_squares", "tensors", tensor)
        run(loops.sum_of_squares, sums.size, source, sums, elements=tensor.numel())
        total += float(sums.sum())
    return total


def adamw_forward(tensors: AdamwTensors, settings: AdamwSettings) -> None:
    op, weights = "adamw", tensors.weights
    arrays: list[list[Any]] = []
    for name, group in tensors._asdict().items():
        dtype, missing = (torch.bfloat16, NO_BF16) if name == "shadows" else (torch.float32, NO_FP32)
        for i, (tensor, weight) in enumerate(zip(group or (), weights, strict=group is not None)):
            check_shape(op, weight.shape, **{f"{name}[{i}]": tensor})
            typed(op, f"{name}[{i}]", tensor, dtype)
        arrays.append([missing] * len(weights) if group is None else [flat(op, name, tensor) for tensor in group])
    lr, beta1, beta2, step = settings.lr, settings.beta1, settings.beta2, settings.step
    decays = (settings.gradient_scale, 1 - lr * settings.weight_decay, beta1, 1 - beta1, beta2, 1 - beta2)
    corrected = (lr / (1 - beta1**step), (1 - beta2**step) ** -0.5, settings.eps, 1 - settings.ema_decay)
    numbers = tuple(np.float32(number) for number in (*decays, *corrected))
    rows = list(zip(*arrays, strict=True))
    if rows:
        loops.adamw.prepare(0, 0, *rows[0], *numbers)
    parts = _equal_parts([weight.numel() for weight in weights])
    spread([partial(_update, [(rows[i], begin, end) for i, begin, end in part], numbers) for part in parts])


def _update(pieces: Sequence[tuple[tuple[Any, ...], int, int]], numbers: tuple[np.float32, ...]) -> None:
    for arrays, begin, end in pieces:
        loops.adamw(begin, end, *arrays, *numbers)


def _equal_parts(counts: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Cut consecutive arrays of these lengths among threads; return (array, begin, end) pieces per thread."""
    total = sum(counts)
    threads = num_threads(total)
    size = max(-(-total // (threads * ADAMW_BLOCK)) * ADAMW_BLOCK, 1)
    arrays = list(enumerate(zip(accumulate(counts, initial=0), counts, strict=False)))
    return [
        [
            (index, max(begin - start, 0), min(begin + size - start, count))
            for index, (start, count) in arrays
            if start < begin + size and begin < start + count
        ]
        for begin in range(0, total, size)
    ]
