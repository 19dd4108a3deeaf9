"""Two ceilings of the machine, with the complete team: multiply-adds in registers, and a copy."""

import ctypes
from typing import Literal

from torch import Tensor

from dithc.native.contexts import context
from dithc.native.loading import library

# hc_dtype of the operands.
NUMBERS = {"fp32": 0, "bf16": 1}


def multiply_add(dtype: Literal["fp32", "bf16"], *, rounds: int) -> float:
    """Run `rounds` rounds of independent multiply-adds on every thread; return the number of floating-point operations."""
    handle, flop = library(), ctypes.c_double()
    assert handle is not None, "a ceiling needs the library"
    handle.hc_multiply_add_ceiling(context(), NUMBERS[dtype], rounds, ctypes.byref(flop))
    return flop.value


def copy(source: Tensor, out_target: Tensor) -> None:
    """Copy a contiguous tensor into another of the same size."""
    handle = library()
    assert handle is not None, "a ceiling needs the library"
    assert source.nbytes == out_target.nbytes
    assert source.is_contiguous()
    assert out_target.is_contiguous()
    handle.hc_copy(context(), source.nbytes, source.data_ptr(), out_target.data_ptr())
