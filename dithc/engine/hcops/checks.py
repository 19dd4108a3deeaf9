"""Argument checks of raw kernels. Errors name operator and argument, before any pointer is used.

Legend: N batch, T tokens, D width, K head width, E width of a hidden layer, F output features.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dithc.core.logging import UserError, user_error

# Numbers of hc_dtype in kernels/include/hcops.h.
TYPES = {torch.float32: 0, torch.bfloat16: 1}
EXPECTED_TYPES = "torch.float32 or torch.bfloat16"
CONSTANTS = ("cos", "sin", "query_weight", "key_weight")
"""Arguments of `rotate_heads`."""


class AdamwTensors(NamedTuple):
    """Arguments of `adamw`: contiguous fp32 tensors of the same shapes in every list, bf16 in `shadows`."""

    weights: Sequence[Tensor]
    gradients: Sequence[Tensor]
    first: Sequence[Tensor]
    second: Sequence[Tensor]
    averages: Sequence[Tensor] | None
    shadows: Sequence[Tensor] | None


def array(op: str, name: str, tensor: Tensor) -> tuple[int, int]:
    """Return address and type number of a contiguous CPU tensor; raise UserError for any other."""
    code = TYPES.get(tensor.dtype)
    if code is None or not tensor.is_cpu or not tensor.is_contiguous():
        raise _unsupported(op, name, tensor)
    address = tensor.data_ptr()
    if address % tensor.itemsize:
        raise _unsupported(op, name, tensor)
    return address, code


def fp32(op: str, name: str, tensor: Tensor) -> int:
    """Return the address of a contiguous fp32 tensor on the CPU; raise UserError for any other."""
    return typed(op, name, tensor, torch.float32)


def typed(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the address of a contiguous CPU tensor of type `dtype`; raise UserError for any other."""
    if tensor.dtype is not dtype:
        raise argument_error(op, name, got=tensor.dtype, expected=dtype, fix="convert it with .to()")
    return array(op, name, tensor)[0]


def condition(op: str, name: str, tensor: Tensor, shape: tuple[int, int]) -> tuple[int, int, int]:
    """Return address, type number and row stride of an (N, D) tensor with dense rows; raise UserError for any other."""
    code = TYPES.get(tensor.dtype)
    if tensor.shape != shape:
        raise wrong_shape(op, name, tensor, expected=shape)
    if code is None or not tensor.is_cpu or (tensor.stride(1) != 1 and shape[1] > 1):
        raise _unsupported(op, name, tensor, layout="rows without gaps")
    address = tensor.data_ptr()
    if address % tensor.itemsize:
        raise _unsupported(op, name, tensor)
    return address, code, tensor.stride(0)


def served_type(op: str, dtype: torch.dtype) -> None:
    """Raise UserError if no kernel computes in `dtype`."""
    if dtype not in TYPES:
        raise argument_error(op, "dtype", got=dtype, expected=EXPECTED_TYPES, fix="give one of these")


def check_heads(op: str, qkv: Tensor, num_heads: int) -> tuple[int, int, int, int]:
    """Return N, T, D and K of qkv (N, T, 3D); raise UserError unless D > 0 and `num_heads` divides D."""
    n, t, width = check_stream(op, "qkv", qkv)
    if width == 0 or width % 3:
        raise wrong_shape(op, "qkv", qkv, expected="(N, T, 3D), D > 0")
    if num_heads < 1 or (width // 3) % num_heads:
        fix = "choose a number of heads that divides the width"
        raise argument_error(op, "num_heads", got=num_heads, expected=f"a divisor of D = {width // 3}", fix=fix)
    return n, t, width // 3, width // (3 * num_heads)


def check_rotation(op: str, qkv: Tensor, num_heads: int, *constants: Tensor | None) -> tuple[int, int, int, int]:
    """Return the sizes of `check_heads`; raise UserError unless tables (T, K / 2) fp32 and weights (K) come in pairs."""
    sizes = check_heads(op, qkv, num_heads)
    _, tokens, _, width = sizes
    cos, sin, query_weight, key_weight = constants
    for names, pair in (("cos, sin", (cos, sin)), ("query_weight, key_weight", (query_weight, key_weight))):
        if (pair[0] is None) != (pair[1] is None):
            raise argument_error(op, names, got="one of them", expected="both, or neither", fix="give both")
    if cos is not None and width % 2:
        fix = "choose a number of heads that leaves each an even width"
        raise argument_error(op, "num_heads", got=f"heads of width {width}", expected="pairs to rotate", fix=fix)
    check_shape(op, (tokens, width // 2), cos=cos, sin=sin)
    check_shape(op, (width,), query_weight=query_weight, key_weight=key_weight)
    for name, table in (("cos", cos), ("sin", sin)):
        if table is not None and table.dtype is not torch.float32:
            fix = "convert it with .to()"
            raise argument_error(op, name, got=table.dtype, expected=torch.float32, fix=fix)
    return sizes


def check_linear(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[int, int, int]:
    """Return the number of rows of x (..., D), F and D; raise UserError unless weight is (F, D) and bias (F)."""
    if weight.dim() != 2:
        raise wrong_shape(op, "weight", weight, expected="(F, D)")
    n, k = weight.shape
    if x.dim() == 0 or x.shape[-1] != k:
        raise wrong_shape(op, "x", x, expected=f"(..., {k}), as wide as the rows of weight")
    check_shape(op, (n,), bias=bias)
    return x.shape[:-1].numel(), n, k


def check_rows(op: str, x: Tensor) -> tuple[int, int]:
    """Return the number of rows of x (..., D) and D; raise UserError for a scalar."""
    if x.dim() == 0:
        raise wrong_shape(op, "x", x, expected="at least one dimension")
    return x.shape[:-1].numel(), x.shape[-1]


def check_samples(op: str, x: Tensor) -> tuple[int, int]:
    """Return N and the number of elements per sample of x (N, ...); raise UserError for a scalar."""
    if x.dim() == 0:
        raise wrong_shape(op, "x", x, expected="(N, ...)")
    return x.shape[0], x.shape[1:].numel()


def check_halves(op: str, name: str, x: Tensor) -> tuple[int, int, int]:
    """Return N, T and E of x (N, T, 2E); raise UserError for any other shape."""
    n, t, width = check_stream(op, name, x)
    if width % 2:
        raise wrong_shape(op, name, x, expected="(N, T, 2E)")
    return n, t, width // 2


def check_patches(op: str, name: str, tensor: Tensor, p: int, order: int, *, rows: int | None = None) -> None:
    """Check p and order for an image (N, C, R * p, S * p) or patches with R = `rows`; UserError names the argument."""
    dimensions = "(N, C, height, width)" if rows is None else "(N, T, C * p * p)"
    if tensor.dim() != (4 if rows is None else 3):
        raise wrong_shape(op, name, tensor, expected=dimensions)
    fix = f"correct it; {name} has shape {tuple(tensor.shape)}"
    if order not in (0, 1):
        raise argument_error(op, "order", got=order, expected="0 (C, p, p) or 1 (p, p, C)", fix=fix)
    if p < 1 or any(size % (p if rows is None else p * p) for size in tensor.shape[2:]):
        expected = "a divisor of height and width" if rows is None else "p * p a divisor of C * p * p"
        raise argument_error(op, "p", got=p, expected=expected, fix=fix)
    if rows is not None and (rows < 1 or tensor.shape[1] % rows):
        raise argument_error(op, "rows", got=rows, expected=f"a divisor of T = {tensor.shape[1]}", fix=fix)


def check_stream(op: str, name: str, x: Tensor) -> tuple[int, int, int]:
    """Return N, T and D of a tensor with three dimensions; raise UserError for any other."""
    if x.dim() != 3:
        raise wrong_shape(op, name, x, expected="(N, T, D)")
    n, t, d = x.shape
    return n, t, d


def check_shape(op: str, expected: tuple[int, ...], **tensors: Tensor | None) -> None:
    """Raise UserError if a tensor, by name, has another shape."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != expected:
            raise wrong_shape(op, name, tensor, expected=tuple(expected))


def wrong_shape(op: str, name: str, tensor: Tensor, *, expected: object) -> Exception:
    """Return the error about a shape, which the caller raises."""
    fix = f"correct {name}; the docstring of {op} lists the shapes"
    return argument_error(op, name, got=f"shape {tuple(tensor.shape)}", expected=f"shape {expected}", fix=fix)


def argument_error(op: str, name: str, *, got: object, expected: object, fix: str) -> UserError:
    return user_error(f"operator {op}, argument {name}", got=got, expected=expected, fix=fix)


def _unsupported(op: str, name: str, tensor: Tensor, *, layout: str = "contiguous") -> Exception:
    if tensor.dtype not in TYPES:
        got, expected = str(tensor.dtype), EXPECTED_TYPES
        fix = "convert it, or choose the back end with hcops.use('reference')"
    elif not tensor.is_cpu:
        got, expected, fix = f"a tensor on {tensor.device}", "a tensor on the CPU", "move it there"
    elif tensor.data_ptr() % tensor.itemsize:
        got, expected = f"memory at {tensor.data_ptr():#x}", f"a multiple of {tensor.itemsize} bytes"
        fix = "copy it with .clone()"
    else:
        got, expected = f"strides {tensor.stride()} of shape {tuple(tensor.shape)}", layout
        fix = "copy it with .contiguous()"
    return argument_error(op, name, got=got, expected=expected, fix=fix)
