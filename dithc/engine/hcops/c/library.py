"""Access of the C back end to the library's functions, immediate or recorded, to packed weights and to outputs."""

import math
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from dithc.core.logging import get_logger
from dithc.engine import native
from dithc.engine.memory import Pool, output_pool
from dithc.engine.native import call_sequences
from dithc.engine.numa import available_bytes, ranks_on_node

# Inverse share of available memory of a node that packed weights may use, for all of its ranks.
INVERSE_SHARE = 4

log = get_logger(__name__)


def pool() -> "Pool | Buffers":
    return _recording.buffers or output_pool()


class PackedWeights:
    """Packed weights by address, version and type of the products. Weights must change through torch only.

    A product first packs its weights into panels. With 128 rows, packing takes half as long as multiplying (AVX-512).
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[Tensor, int, Tensor]] = {}
        self._num_bytes = 0
        self._is_full = False

    def get(self, weight: Tensor, arguments: native.GemmArguments) -> Tensor | None:
        """Return `packed_b` of a product with this weight, which is kept, or None without packing or memory."""
        key = weight.data_ptr(), arguments.compute
        version = tensor_version(weight)
        if version is None:
            return None
        entry = self._kept.pop(key, None)
        if entry is not None:
            source, packed_version, packed = entry
            if packed_version == version and source.shape == weight.shape and source.stride() == weight.stride():
                self._kept[key] = entry
                return packed
            self._num_bytes -= packed.nbytes
        size = torch.zeros(1, dtype=torch.int64)
        context, library = native.context(), native.loaded()
        library.hc_gemm_pack_bytes(context, arguments, size.data_ptr())
        num_bytes = int(size)
        if num_bytes == 0 or not self._fits(num_bytes):
            return None
        packed = output_pool().empty((num_bytes,), torch.uint8)
        library.hc_gemm_pack(context, arguments, packed.data_ptr())
        self._kept[key] = weight.detach(), version, packed
        self._num_bytes += packed.nbytes
        return packed

    def drop(self, addresses: Collection[int]) -> None:
        """Remove the weights at these addresses. Programs keep the packed weights they use."""
        for key in [key for key in self._kept if key[0] in addresses]:
            entry = self._kept.pop(key, None)
            self._num_bytes -= 0 if entry is None else entry[2].nbytes

    def _fits(self, num_bytes: int) -> bool:
        available, ranks = available_bytes(), ranks_on_node()
        total = (available or 0) + ranks * self._num_bytes  # memory before any rank stored packed weights
        is_full = available is not None and INVERSE_SHARE * ranks * (self._num_bytes + num_bytes) > total
        if is_full and not self._is_full:
            log.info(
                "storing %d MiB of packed weights; packing the other weights at each call, because %d rank(s) may use at most "
                "1/%d of %d MiB of available memory",
                *(self._num_bytes >> 20, ranks, INVERSE_SHARE, total >> 20),
            )
        self._is_full = is_full
        return not is_full


def tensor_version(weight: Tensor) -> int | None:
    """Return the number of changes through torch, or None if torch does not count them."""
    return None if weight.is_inference() else weight._version


class Buffers:
    """Result memory of a `program`. Tensors re-use memory that no recorded kernel reads any more."""

    def __init__(self, packs: PackedWeights, memory: list[Tensor]) -> None:
        self.packs, self._memory = packs, memory
        self._free = list(self._memory)
        self._taken: list[Tensor] = []
        self._kept: list[Tensor] = []
        self.packed: list[Tensor] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        fitting = [buffer for buffer in self._free if buffer.numel() >= num_bytes]
        if fitting:
            buffer = min(fitting, key=torch.Tensor.numel)
            self._free = [candidate for candidate in self._free if candidate is not buffer]
        else:
            buffer = output_pool().empty((num_bytes,), torch.uint8)
            self._memory.append(buffer)
        self._taken.append(buffer)
        return buffer[:num_bytes].view(dtype).view(tuple(shape))

    def keep(self, tensor: Tensor) -> None:
        """Exclude the memory of a tensor from re-use."""
        address = tensor.untyped_storage().data_ptr()
        self._kept += [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() == address]
        self._taken = [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() != address]

    def free_except(self, kept: Tensor) -> None:
        """Release all tensors except `kept` and tensors passed to `keep`; kernels recorded later do not read them."""
        address = kept.untyped_storage().data_ptr()
        self._free += [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() != address]
        self._taken = [buffer for buffer in self._taken if buffer.untyped_storage().data_ptr() == address]


class _Recording(threading.local):
    recorder: call_sequences.CallRecorder | None = None
    buffers: Buffers | None = None  # buffers of a program, or None


_recording = _Recording()
_handle = cache(native.loaded)


def functions() -> Any:
    """Return the library, or within a `sequence` its recorder."""
    return _recording.recorder or _handle()


@contextmanager
def sequence() -> Iterator[None]:
    """Run all C kernels called within a `with` block at its end, as one call, or as part of a `program`.

    The block must not read their results, and must keep every tensor they use in a variable, because freed memory may
    be re-used before the kernels run. If the block fails, no kernel runs.
    """
    if _recording.buffers is not None:
        yield
        return
    assert _recording.recorder is None, "a sequence within a sequence"
    recorder = _recording.recorder = call_sequences.CallRecorder(_handle())
    try:
        yield
    finally:
        _recording.recorder = None
    recorder.run()


class program:  # lower case because call sites use it like a function
    """Record the C kernels called within a `with` block; `run` executes them, any number of times.

    Only C kernels may use their tensors within the block. Tensors created there belong to the program, which may share
    `memory` with other programs. The caller keeps the memory of all other tensors. Their content may change, except
    weights.
    """

    def __init__(self, packs: PackedWeights, memory: list[Tensor]) -> None:
        self.buffers = Buffers(packs, memory)

    def __enter__(self) -> Self:
        assert _recording.recorder is None, "a program within a sequence"
        self._recorder = _recording.recorder = call_sequences.CallRecorder(_handle())
        _recording.buffers = self.buffers
        return self

    def __exit__(self, *_: object) -> None:
        _recording.recorder = _recording.buffers = None
        self._recorded = self._recorder.finish()

    def run(self) -> None:
        """Run the kernels in order up to the first failure, whose MemoryError or ValueError contains its name."""
        self._recorded.run()


def set_packed(weight: Tensor | None, arguments: native.GemmArguments) -> None:
    """Make a product that is recorded in a `program` with packs read the packed form of its weight."""
    buffers = _recording.buffers
    if weight is not None and buffers is not None and (packed := buffers.packs.get(weight, arguments)) is not None:
        buffers.packed.append(packed)
        arguments.packed_b = packed.data_ptr()


def run_recorded() -> None:
    """Run all kernels recorded so far, before torch reads or writes their tensors."""
    assert _recording.buffers is None, "torch within a program"
    if _recording.recorder is not None:
        _recording.recorder.run()
