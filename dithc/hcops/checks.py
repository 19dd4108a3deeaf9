"""What raw kernels demand of their tensors: an error that names operator and argument, before a pointer is used.

Legend: N batch, D width.
"""

import torch
from torch import Tensor

from dithc.log import problem

# Numbers of hc_dtype in kernels/include/hcops.h.
TYPES = {torch.float32: 0, torch.bfloat16: 1}
EXPECTED_TYPES = "torch.float32 or torch.bfloat16"


def array(op: str, name: str, tensor: Tensor) -> tuple[int, int]:
    """The address and the type number of a contiguous tensor on the CPU.

    Raises:
        UserError: another type, device or memory layout; the message names `op` and `name`.
    """
    code = TYPES.get(tensor.dtype)
    if code is None or not tensor.is_cpu or not tensor.is_contiguous():
        raise _unfit(op, name, tensor)
    address = tensor.data_ptr()
    if address % tensor.itemsize:
        raise _unfit(op, name, tensor)
    return address, code


def fp32(op: str, name: str, tensor: Tensor) -> int:
    """The address of a contiguous fp32 tensor on the CPU; raises as `typed`."""
    return typed(op, name, tensor, torch.float32)


def typed(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """The address of a contiguous tensor of one type on the CPU.

    Raises:
        UserError: as `array`, and for other types.
    """
    if tensor.dtype is not dtype:
        raise problem(_where(op, name), got=tensor.dtype, expected=dtype, remedy="convert it with .to()")
    return array(op, name, tensor)[0]


def condition(op: str, name: str, tensor: Tensor, shape: tuple[int, int]) -> tuple[int, int, int]:
    """The address, type number and row stride of an (N, D) tensor whose rows are dense, such as a chunk of (N, 6D).

    Raises:
        UserError: as `array`, and for other shapes.
    """
    code = TYPES.get(tensor.dtype)
    if tensor.shape != shape:
        raise wrong_shape(op, name, tensor, expected=shape)
    if code is None or not tensor.is_cpu or (tensor.stride(1) != 1 and shape[1] > 1):
        raise _unfit(op, name, tensor, layout="rows without gaps")
    address = tensor.data_ptr()
    if address % tensor.itemsize:
        raise _unfit(op, name, tensor)
    return address, code, tensor.stride(0)


def stream(op: str, name: str, x: Tensor) -> tuple[int, int, int]:
    """N, T and D of a tensor of three dimensions.

    Raises:
        UserError: it has others.
    """
    if x.dim() != 3:
        raise wrong_shape(op, name, x, expected="(N, T, D)")
    n, t, d = x.shape
    return n, t, d


def shape_of(op: str, name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    """Checks a shape.

    Raises:
        UserError: it is another one.
    """
    if tensor.shape != expected:
        raise wrong_shape(op, name, tensor, expected=expected)


def wrong_shape(op: str, name: str, tensor: Tensor, *, expected: object) -> Exception:
    """The error about a shape, for the caller to raise."""
    remedy = f"look at where {name} is made; the shapes of {op} are in its docstring"
    return problem(_where(op, name), got=f"shape {tuple(tensor.shape)}", expected=f"shape {expected}", remedy=remedy)


def _where(op: str, name: str) -> str:
    return f"operator {op}, argument {name}"


def _unfit(op: str, name: str, tensor: Tensor, *, layout: str = "contiguous") -> Exception:
    where = _where(op, name)
    if tensor.dtype not in TYPES:
        remedy = "convert it, or choose the back end with hcops.use('reference')"
        return problem(where, got=tensor.dtype, expected=EXPECTED_TYPES, remedy=remedy)
    if not tensor.is_cpu:
        return problem(
            where, got=f"a tensor on {tensor.device}", expected="a tensor on the CPU", remedy="move it there"
        )
    if tensor.data_ptr() % tensor.itemsize:
        got = f"memory at {tensor.data_ptr():#x}"
        return problem(
            where, got=got, expected=f"a multiple of {tensor.itemsize} bytes", remedy="copy it with .clone()"
        )
    return problem(
        where,
        got=f"strides {tensor.stride()} of shape {tuple(tensor.shape)}",
        expected=layout,
        remedy="copy it with .contiguous()",
    )
