"""Access of the C back end to the library's functions, immediate or recorded, to packed weights and to outputs."""

import math
import threading
from collections.abc import Collection, Sequence
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
SHARE = 4

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

    def of(self, weight: Tensor, arguments: native.GemmArguments) -> Tensor | None:
        """Return `packed_b` of a product with this weight, which is kept, or None without packing or memory."""
        key = weight.data_ptr(), arguments.compute
        version = tensor_version(weight)
        if version is None:
            return None
        found = self._kept.pop(key, None)
        if found is not None:
            kept, of_version, packed = found
            if of_version == version and kept.shape == weight.shape and kept.stride() == weight.stride():
                self._kept[key] = found
                return packed
            self._num_bytes -= packed.nbytes
        bytes_of = torch.zeros(1, dtype=torch.int64)
        context, library = native.context(), native.loaded()
        library.hc_gemm_pack_bytes(context, arguments, bytes_of.data_ptr())
        num_bytes = int(bytes_of)
        if num_bytes == 0 or not self._has_room(num_bytes):
            return None
        packed = output_pool().empty((num_bytes,), torch.uint8)
        library.hc_gemm_pack(context, arguments, packed.data_ptr())
        self._kept[key] = weight.detach(), version, packed
        self._num_bytes += packed.nbytes
        return packed

    def drop(self, addresses: Collection[int]) -> None:
        """Remove the weights at these addresses. Programs keep the packed weights they use."""
        for key in [key for key in self._kept if key[0] in addresses]:
            found = self._kept.pop(key, None)
            self._num_bytes -= 0 if found is None else found[2].nbytes

    def _has_room(self, num_bytes: int) -> bool:
        available, ranks = available_bytes(), ranks_on_node()
        whole = (available or 0) + ranks * self._num_bytes  # memory before any rank stored packed weights
        is_full = available is not None and SHARE * ranks * (self._num_bytes + num_bytes) > whole
        if is_full and not self._is_full:
            log.info(
                "storing %d MiB of packed weights; packing the other weights at each call, because %d rank(s) may use at most "
                "1/%d of %d MiB of available memory",
                *(self._num_bytes >> 20, ranks, SHARE, whole >> 20),
            )
        self._is_full = is_full
        return not is_full


def tensor_version(weight: Tensor) -> int | None:
    """Return the number of changes through torch, or None if torch does not count them."""
    return None if weight.is_inference() else weight._version


class Buffers:
    """Result memory of a `program`. Tensors re-use memory that no recorded kernel reads any more."""

    def __init__(self, packs: PackedWeights, memory: list[Tensor]) -> None:
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
            buffer = output_pool().empty((num_bytes,), torch.uint8)
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
    now: call_sequences.CallRecorder | None = None
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
        _recording.now = call_sequences.CallRecorder(_handle())

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

    def __init__(self, packs: PackedWeights, memory: list[Tensor]) -> None:
        """Set storage of packed weights, and memory shared with other programs."""
        self._packs, self._memory = packs, memory

    def __enter__(self) -> Self:
        assert _recording.now is None, "a program within a sequence"
        _recording.now = call_sequences.CallRecorder(_handle())
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
