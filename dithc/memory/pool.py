"""Tensors over blocks of the pre-faulted pool of huge pages.

A tensor that torch takes from the system costs a page fault for every 4 KiB that is written first; in a training step the
same sizes come again and again, so the pool keeps their pages.
"""

import ctypes
import math
import resource
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dithc import native
from dithc.log import logger

log = logger(__name__)

# Below this, a tensor of torch's allocator is as fast: glibc keeps such blocks on its heap, where pages stay touched.
SMALLEST_BYTES = 1 << 20
# Numbers of hc_dtype.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float64: 2}
# The name that marks a capsule as a DLPack tensor nobody has taken yet. The capsule keeps the address, so it is never freed.
_CAPSULE_NAME = ctypes.create_string_buffer(b"dltensor")
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p), ctypes.py_object
_NAME_ADDRESS = ctypes.addressof(_CAPSULE_NAME)
_SHAPES = tuple(ctypes.c_int64 * rank for rank in range(9))


@dataclass(frozen=True)
class Counters:
    """Bytes in use, idle and the most ever in use; how many tensors found idle memory alone (hits) or not (misses)."""

    used_bytes: int
    idle_bytes: int
    peak_bytes: int
    hits: int
    misses: int


class Pool:
    """Gives contiguous CPU tensors whose memory is used again; without the C library it is torch's own allocator.

    A block returns to the pool when the last tensor over it is gone, from whichever thread, and joins its free neighbours:
    what lived there serves tensors of any size.
    """

    def __init__(self) -> None:
        self._library = native.library()
        self._pool = ctypes.c_void_p()
        if self._library is not None:
            self._library.hc_pool_create(ctypes.byref(self._pool))
            self._warn_without_addresses()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor with undefined content.

        Raises:
            MemoryError: the system refused memory.
        """
        rank = len(shape)
        code = TYPES.get(dtype)
        if (
            self._library is None
            or code is None
            or math.prod(shape) * dtype.itemsize < SMALLEST_BYTES
            or rank >= len(_SHAPES)
        ):
            return torch.empty(shape, dtype=dtype)
        managed = self._library.hc_pool_tensor(self._pool, native.context(), code, rank, _SHAPES[rank](*shape))
        if managed is None:
            raise MemoryError(f"pool of huge pages: no memory for {tuple(shape)} of {dtype}; {self.counters()}")
        tensor: Tensor = torch.utils.dlpack.from_dlpack(_new_capsule(managed, _NAME_ADDRESS, None))
        return tensor

    @property
    def reserved_bytes(self) -> int:
        """Addresses that blocks are cut from; 0 where the system refused, and without the library."""
        number = ctypes.c_int64()
        if self._library is not None:
            self._library.hc_pool_reserved(self._pool, ctypes.byref(number))
        return number.value

    def counters(self) -> Counters:
        """What the pool holds now; zeros without the library."""
        numbers = [ctypes.c_int64() for _ in range(5)]
        if self._library is not None:
            self._library.hc_pool_counters(self._pool, *map(ctypes.byref, numbers))
        return Counters(*(number.value for number in numbers))

    def trim(self) -> None:
        """Gives idle huge pages back to the system."""
        if self._library is not None:
            self._library.hc_pool_trim(self._pool)

    def _warn_without_addresses(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            log.warning(
                "the address space of this process is limited to %d bytes (ulimit -v): the pool of outputs re-uses %d bytes "
                "of it; what does not fit there is mapped and unmapped each time, which is slower",
                *(soft, self.reserved_bytes),
            )
        elif self.reserved_bytes == 0:
            log.warning("the system refused a range of addresses: every output is mapped and unmapped, which is slower")
