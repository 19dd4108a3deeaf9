"""Access of the C back end to the library's functions, immediate or recorded, and to the pool of outputs."""

import math
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from dithc import native
from dithc.hcops.c.packs import Packs
from dithc.memory import Pool, hot_pool
from dithc.native import sequences


def pool() -> "Pool | Buffers":
    return _recording.buffers or hot_pool()


class Buffers:
    """Result memory of a `program`. Tensors re-use memory that no recorded kernel reads any more."""

    def __init__(self, packs: Packs, memory: list[Tensor]) -> None:
        self._packs, self._memory = packs, memory
        self._free = list(self._memory)
        self._taken: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._arranged: list[Tensor] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        fitting = [buffer for buffer in self._free if buffer.numel() >= num_bytes]
        if fitting:
            buffer = min(fitting, key=torch.Tensor.numel)
            self._free = [other for other in self._free if other is not buffer]
        else:
            buffer = hot_pool().empty((num_bytes,), torch.uint8)
            self._memory.append(buffer)
        self._taken.append(buffer)
        return buffer[:num_bytes].view(dtype).view(tuple(shape))

    def keep(self, tensor: Tensor) -> None:
        """Exclude the memory of a tensor from re-use."""
        at = tensor.untyped_storage().data_ptr()
        self._kept += [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() == at]
        self._taken = [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() != at]

    def arrange(self, weight: Tensor, arguments: native.GemmArguments) -> None:
        """Set the packed weight of a product; see `arranged`."""
        packed = self._packs.of(weight, arguments)
        if packed is not None:
            self._arranged.append(packed)
            arguments.packed_b = packed.data_ptr()

    def free_all_but(self, kept: Tensor) -> None:
        """Release all tensors except `kept` and tensors passed to `keep`; kernels recorded later do not read them."""
        at = kept.untyped_storage().data_ptr()
        self._free += [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() != at]
        self._taken = [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() == at]


class _Recording(threading.local):
    now: sequences.Sequence | None = None
    buffers: Buffers | None = None  # buffers of a program, or None


_recording = _Recording()
_handle = cache(native.loaded)


def functions() -> Any:
    """Return the library, or within a `sequence` its recorder."""
    return _recording.now or _handle()


class sequence:  # lower case because call sites use it like a function
    """Run all C kernels called within a `with` block at its end, as one call, or as part of a `program`.

    The block must not read their results, and must keep every tensor they use in a variable, because freed memory may
    be re-used before the kernels run. If the block fails, no kernel runs.
    """

    def __enter__(self) -> None:
        self._is_part = _recording.buffers is not None
        if self._is_part:
            return
        assert _recording.now is None, "a sequence within a sequence"
        _recording.now = sequences.Sequence(_handle())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_part:
            return
        recorded, _recording.now = _recording.now, None
        if kind is None and recorded is not None:
            recorded.run()


class program:  # lower case because call sites use it like a function
    """Record the C kernels called within a `with` block; `run` executes them, any number of times.

    Only C kernels may use their tensors within the block. Tensors created there belong to the program. The caller keeps
    the memory of all other tensors. Their content may change, except weights.
    """

    def __init__(self, packs: Packs, memory: list[Tensor]) -> None:
        """Set storage of packed weights, and memory shared with other programs."""
        self._packs, self._memory = packs, memory

    def __enter__(self) -> Self:
        assert _recording.now is None, "a program within a sequence"
        _recording.now = sequences.Sequence(_handle())
        self.buffers = _recording.buffers = Buffers(self._packs, self._memory)
        return self

    def __exit__(self, *_: object) -> None:
        recorded, _recording.now, _recording.buffers = _recording.now, None, None
        assert recorded is not None
        self._recorded = recorded.taken()

    def run(self) -> None:
        """Run the kernels in order up to the first failure, whose MemoryError or ValueError contains its name."""
        self._recorded.run()


def arranged(weight: Tensor | None, arguments: native.GemmArguments) -> None:
    """Make a product that is recorded in a `program` with packs read the packed form of its weight."""
    if weight is not None and _recording.buffers is not None:
        _recording.buffers.arrange(weight, arguments)


def run_recorded() -> None:
    """Run all kernels recorded so far, before torch reads or writes their tensors."""
    assert _recording.buffers is None, "torch within a program"
    if _recording.now is not None:
        _recording.now.run()
