"""What every file of the C back end needs: the library's functions, at once or in sequence, and the pool of outputs."""

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
    """Where outputs of operators come from."""
    return _recording.buffers or hot_pool()


class Buffers:
    """The memory of a `program`: its tensors lie where earlier ones did that nothing reads any more."""

    def __init__(self, packs: Packs | None, memory: list[Tensor] | None) -> None:
        self._packs = packs
        self._memory = [] if memory is None else memory
        self._free = list(self._memory)
        self._taken: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._arranged: list[Tensor] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor with undefined content."""
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
        """Its memory is never used again."""
        at = tensor.untyped_storage().data_ptr()
        self._kept += [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() == at]
        self._taken = [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() != at]

    def arrange(self, weight: Tensor, arguments: native.GemmArguments) -> None:
        """See `arranged`."""
        packed = None if self._packs is None else self._packs.of(weight, arguments)
        if packed is not None:
            self._arranged.append(packed)
            arguments.packed_b = packed.data_ptr()

    def free_all_but(self, kept: Tensor) -> None:
        """From here on nothing that is recorded reads any tensor but this one, and those that are kept."""
        at = kept.untyped_storage().data_ptr()
        self._free += [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() != at]
        self._taken = [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() == at]


class _Recording(threading.local):
    now: sequences.Sequence | None = None
    buffers: Buffers | None = None  # of a program


_recording = _Recording()


def functions() -> Any:
    """The library, or in the body of a `sequence` what records calls of it."""
    return _recording.now or _handle()


class sequence:  # reads as a verb at the place of use
    """Has the C kernels that are called in the body of a `with` run at its end, as one call.

    In the body nothing reads what they write, and every tensor that they were given or made stays in a variable: memory of one
    that is gone may be somebody else's by the time that they run. If the body fails none of them runs. Within a `program` it is a
    part of that.
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


class program:  # reads as a verb at the place of use
    """Records the C kernels that are called in the body of a `with`; they run when, and as often as, `run` is called.

    Nothing but C kernels may work on their tensors in the body. Those made there are the program's own; of all others that it was
    given, weights and inputs, whoever runs it keeps the memory, in which content may change, of weights only where there are no
    packs.
    """

    def __init__(self, packs: Packs | None = None, memory: list[Tensor] | None = None) -> None:
        """Set storage of packed weights (None: pack in each run), and result memory of programs that never run concurrently."""
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
        """Run the kernels in order; MemoryError or ValueError names the first kernel that failed, and later ones do not run."""
        self._recorded.run()


def arranged(weight: Tensor | None, arguments: native.GemmArguments) -> None:
    """Has a product that is recorded in a `program` with packs read its weight as it lies there."""
    if weight is not None and _recording.buffers is not None:
        _recording.buffers.arrange(weight, arguments)


def run_recorded() -> None:
    """Runs what was recorded so far, if anything: before torch reads or writes what kernels do."""
    assert _recording.buffers is None, "torch within a program"
    if _recording.now is not None:
        _recording.now.run()


@cache
def _handle() -> Any:
    """The library; the table offers this back end only where there is one."""
    handle = native.library()
    assert handle is not None, native.load().reason
    return handle
