"""Ceilings of the machine, with the complete team: multiply-adds in registers, a copy, and barriers."""

import ctypes
from typing import Literal

from torch import Tensor

from dithc.engine.native.contexts import context
from dithc.engine.native.loading import loaded

# hc_dtype of the operands.
NUMBERS = {"fp32": 0, "bf16": 1}


def multiply_add(dtype: Literal["fp32", "bf16"], *, rounds: int) -> float:
    """Run `rounds` rounds of independent multiply-adds on every thread; return the number of floating-point operations."""
    flop = ctypes.c_double()
    loaded().hc_multiply_add_ceiling(context(), NUMBERS[dtype], rounds, ctypes.byref(flop))
    return flop.value


def copy(source: Tensor, out_target: Tensor) -> None:
    assert source.nbytes == out_target.nbytes
    assert source.is_contiguous()
    assert out_target.is_contiguous()
    loaded().hc_copy(context(), source.nbytes, source.data_ptr(), out_target.data_ptr())


def barriers(count: int, *, num_threads: int) -> None:
    """Run `count` barriers of all threads of a context, back to back."""
    loaded().hc_barrier_ceiling(context(num_threads=num_threads), count)
