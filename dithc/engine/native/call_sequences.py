"""Operators of the library as one call: recorded while Python prepares them, then run without gaps.

Python takes 0.2 to 0.3 milliseconds after an operator, which evicts its data from the caches, and otherwise 0.02.
"""

import ctypes
import struct
from array import array
from collections.abc import Callable
from typing import Any

from dithc.engine.native.signatures import STATUS_FUNCTIONS

# In the order of hc_step of kernels/include/hcops.h.
STEPS = (
    "hc_gemm",
    "hc_adaln_forward",
    "hc_adaln_backward",
    "hc_gate_residual_backward",
    "hc_attention_forward",
    "hc_attention_backward",
    "hc_map",
    "hc_map_backward",
    "hc_swiglu_forward",
    "hc_swiglu_backward",
    "hc_rotate_heads_forward",
    "hc_rotate_heads_backward",
    "hc_attention_heads_forward",
)
STRUCTURES = ("hc_gemm", "hc_attention_heads_forward")  # have one argument, a structure


class CallRecorder:
    """Recorder with the library's functions as methods. A call stores its arguments and runs nothing.

    The caller keeps every recorded tensor until `run` returns, and reads none of them before.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._words = array("q")
        self._context = 0
        self._structures: list[ctypes.Structure] = []

    def _record(self, step: int, context: int, words: tuple[int | None, ...]) -> None:
        self._context = context
        self._words.append(step)
        self._words.extend([word or 0 for word in words])

    def run(self) -> None:
        """Run all calls recorded since the last run, as `RecordedCalls.run`."""
        self.finish().run()

    def finish(self) -> "RecordedCalls":
        """Return the calls recorded since the last run or `finish`, without running them."""
        recorded = RecordedCalls(self._library, self._context, self._words, self._structures)
        self._words, self._structures = array("q"), []
        return recorded


class RecordedCalls:
    """Operators that can run repeatedly, each time on the same addresses."""

    def __init__(
        self, library: ctypes.CDLL, context: int, words: "array[int]", structures: list[ctypes.Structure]
    ) -> None:
        self._library, self._context, self._words = library, context, words
        self._structures = structures  # the recorded words contain their addresses

    def run(self) -> None:
        """Run the operators in order up to the first failure, whose MemoryError or ValueError contains the function."""
        words, failed = self._words, ctypes.c_int64()
        if not words:
            return
        try:
            self._library.hc_sequence(self._context, words.buffer_info()[0], len(words), ctypes.byref(failed))
        except (MemoryError, ValueError) as error:
            raise type(error)(f"{STEPS[words[failed.value]]} in {error}") from None


def _recorder(step: int, name: str) -> Callable[..., None]:
    floats = [index for index, kind in enumerate(STATUS_FUNCTIONS[name][1:]) if kind is ctypes.c_float]

    def record(self: CallRecorder, context: int, *words: Any) -> None:
        if floats:
            bits = list(words)
            for index in floats:
                (bits[index],) = struct.unpack("q", struct.pack("d", bits[index]))
            words = tuple(bits)
        self._record(step, context, words)

    return record


def _recorder_of_structure(step: int) -> Callable[..., None]:
    def record(self: CallRecorder, context: int, arguments: ctypes.Structure) -> None:
        self._structures.append(arguments)
        self._record(step, context, (ctypes.addressof(arguments),))

    return record


for _step, _name in enumerate(STEPS):
    setattr(CallRecorder, _name, _recorder_of_structure(_step) if _name in STRUCTURES else _recorder(_step, _name))
