"""Tensors in a pre-faulted pool of huge pages, with an optional budget in bytes.

Fresh system memory costs a page fault per 4 KiB. A training step repeats its sizes, so the pool keeps their pages.
"""

import ctypes
import math
import os
import resource
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dithc.core.logging import get_logger, user_error
from dithc.engine import native
from dithc.engine.native import signatures

log = get_logger(__name__)

# Below this size, torch's allocator is as fast. Larger aligned blocks fragment the heap of glibc by up to 15% of a rank.
SMALLEST_BYTES = 1 << 18
POOL_VARIABLE = "DITHC_OUTPUT_POOL"
# Numbers of hc_dtype.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float64: 2}
# Name of a capsule with an unconsumed DLPack tensor. The capsule stores the address, so the buffer is never freed.
_CAPSULE_NAME = ctypes.create_string_buffer(b"dltensor")
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p), ctypes.py_object
_NAME_ADDRESS = ctypes.addressof(_CAPSULE_NAME)
_SHAPES = tuple(ctypes.c_int64 * rank for rank in range(9))


@dataclass(frozen=True)
class PoolCounters:
    """State and history of a pool."""

    used_bytes: int = 0  # of blocks in use, each rounded up to 4,096
    idle_bytes: int = 0  # backed by the system, outside of blocks
    peak_bytes: int = 0  # peak use since `start_peak`
    hits: int = 0  # blocks served from idle memory only
    misses: int = 0  # blocks that required system memory
    backed_bytes: int = 0  # used and idle bytes, limited by `budget_bytes`
    peak_backed_bytes: int = 0  # all-time peak of `backed_bytes`: the evidence that the budget was kept
    budget_bytes: int | None = None
    spills: int = 0  # requests beyond the budget, passed to the pool below or rejected
    num_blocks: int = 0


class PoolHandle:
    """Reference that keeps a library pool and its lower pools alive, for `Pool` and for threads in its mode."""


class Pool:
    """Allocator of contiguous CPU tensors with reuse; torch's allocator without the C library.

    A block is returned when its last tensor is freed, from any thread, and merges with free neighbors. The memory of a
    deleted pool lives until its last tensor is freed.
    """

    def __init__(
        self,
        *,
        budget_bytes: int | None = None,
        nodes: Sequence[int] = (),
        next: "Pool | None" = None,
        file: int | None = None,
        reserved_pages: bool = False,
    ) -> None:
        """Create a pool.

        Args:
            budget_bytes: limit of physical memory, in use and idle; None for no limit.
            nodes: memory nodes to bind to, one per equal run of threads; () for the core clusters' own nodes.
            next: pool for requests beyond the budget; None for no overflow.
            file: descriptor of a file of `budget_bytes` (multiple of 2 MiB) that backs the memory.
            reserved_pages: whether to use reserved huge pages for the complete budget, if they suffice.

        Raises:
            MemoryError: the system rejected the mapping of the file.
            ValueError: a file or reserved pages of less than 2 MiB.
        """
        self.next = next
        self._library: Any = native.library()
        self._pool = ctypes.c_void_p()
        self.handle: PoolHandle | None = None
        self.range = (0, 0)
        if self._library is None:
            return
        options = signatures.PoolOptions(
            budget_bytes=-1 if budget_bytes is None else budget_bytes,
            nodes=(ctypes.c_int * len(nodes))(*nodes) if nodes else None,
            next=next._pool if next is not None else None,
            num_nodes=len(nodes),
            file=-1 if file is None else file,
            reserved_pages=int(reserved_pages),
        )
        self._library.hc_pool_create(ctypes.byref(options), ctypes.byref(self._pool))
        self.handle = PoolHandle()
        # Keeps the pool below alive until this pool is released.
        next_handle = None if next is None else next.handle
        release = weakref.finalize(self.handle, _release, self._library, self._pool.value, next_handle)
        release.atexit = False  # a thread that is not joined may still be inside an operator
        start, size = ctypes.c_void_p(), ctypes.c_int64()
        self._library.hc_pool_reserved(self._pool, ctypes.byref(start), ctypes.byref(size))
        self.range = (start.value or 0, size.value)
        if file is None:
            self._warn_without_addresses()

    @classmethod
    def off(cls) -> "Pool":
        """Return a disabled pool: tensors come from torch's allocator."""
        pool = cls.__new__(cls)
        pool.next, pool._library, pool._pool, pool.handle, pool.range = None, None, ctypes.c_void_p(), None, (0, 0)
        return pool

    def empty(self, shape: Sequence[int], dtype: torch.dtype, *, floor_bytes: int = SMALLEST_BYTES) -> Tensor:
        """Return an uninitialized contiguous tensor from this pool or the pools below it.

        Args:
            dtype: any; types other than floats of 2, 4 or 8 bytes may have a few extra bytes of storage.
            floor_bytes: smaller tensors, and empty ones, come from torch.

        Raises:
            MemoryError: the last pool is full, or the system rejected the request for memory.
        """
        size_bytes = math.prod(shape) * dtype.itemsize
        if self._library is None or size_bytes < max(1, floor_bytes):
            return torch.empty(shape, dtype=dtype)
        code, rank = TYPES.get(dtype), len(shape)
        if code is None or rank >= len(_SHAPES):
            elements = self.empty((-(-size_bytes // 4),), torch.float32, floor_bytes=1)
            return elements.view(torch.uint8)[:size_bytes].view(dtype).view(tuple(shape))
        managed = self._library.hc_pool_tensor(self._pool, native.context(), code, rank, _SHAPES[rank](*shape))
        if managed is None:
            raise MemoryError(f"pool of huge pages: no memory for {tuple(shape)} of {dtype}; {self.counters()}")
        tensor: Tensor = torch.utils.dlpack.from_dlpack(_new_capsule(managed, _NAME_ADDRESS, None))
        return tensor

    def holds(self, address: int) -> bool:
        """Return whether an address is in this pool (lower pools do not count)."""
        start, size = self.range
        return start <= address < start + size or (
            self._library is not None and bool(address) and self._library.hc_pool_holds(self._pool, address) == 1
        )

    @property
    def free_bytes(self) -> int | None:
        """Bytes between use and budget, possibly fragmented; None without a budget."""
        if self._library is None:
            return None
        state = self._state()
        return None if state.budget_bytes < 0 else max(0, state.budget_bytes - state.used_bytes)

    def counters(self) -> PoolCounters:
        """Return the counters; zeros without the library."""
        if self._library is None:
            return PoolCounters()
        state = self._state()
        numbers = {field.name: getattr(state, field.name) for field in fields(PoolCounters)}
        return PoolCounters(**numbers | {"budget_bytes": None if state.budget_bytes < 0 else state.budget_bytes})

    def _state(self) -> signatures.PoolState:
        state = signatures.PoolState()
        self._library.hc_pool_counters(self._pool, ctypes.byref(state))
        return state

    def start_peak(self) -> None:
        """Restart `peak_bytes` at the current use."""
        if self._library is not None:
            self._library.hc_pool_start_peak(self._pool)

    def trim(self) -> None:
        """Return idle huge pages to the system."""
        if self._library is not None:
            self._library.hc_pool_trim(self._pool)

    def close(self) -> None:
        """Stop serving: new tensors come from torch's allocator, and existing tensors stay valid."""
        if self._library is not None:
            self._library.hc_pool_close(self._pool)  # for threads that still use it in their mode
            self._library, self._pool, self.handle = None, ctypes.c_void_p(), None

    def _warn_without_addresses(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            log.warning(
                "the address space of this process is limited to %d bytes (ulimit -v): the pool of outputs reuses %d bytes "
                "of it; larger outputs are mapped and unmapped each time, which is slower",
                *(soft, self.range[1]),
            )
        elif self.range[1] == 0:
            log.warning("the system rejected an address range: every output is mapped and unmapped, which is slower")


def _release(library: ctypes.CDLL, pool: int | None, _next: PoolHandle | None) -> None:
    library.hc_pool_release(pool)


_output_pool: list[Pool] = []


def output_pool() -> Pool:
    """Return the pool of operator outputs: `set_output_pool`'s, else an unlimited pool.

    DITHC_OUTPUT_POOL=off selects torch's own allocator, for comparison; other values are a UserError.
    """
    if not _output_pool:
        setting = os.environ.get(POOL_VARIABLE, "on")
        if setting not in ("on", "off"):
            subject, fix = (
                f"pool of outputs (environment variable {POOL_VARIABLE})",
                f"correct or unset {POOL_VARIABLE}",
            )
            raise user_error(subject, got=setting, expected="on or off", fix=fix)
        if setting == "off":
            log.info("outputs of operators come from torch's allocator: %s=off", POOL_VARIABLE)
        _output_pool.append(Pool.off() if setting == "off" else Pool())
    return _output_pool[0]


def set_output_pool(pool: Pool) -> Pool:
    """Serve operator outputs from `pool`; return the previous pool, for a later restore."""
    previous = output_pool()
    _output_pool[0] = pool
    return previous
