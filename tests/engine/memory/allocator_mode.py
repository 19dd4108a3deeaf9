"""The mode of torch's allocator for tests: a block in it, its state, and its counters."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dithc.engine.memory import Pool, allocator


class Counters(NamedTuple):
    """Process-wide counters: requests served by pools, requests rejected by all pools, and live bytes."""

    num_served: int
    served_bytes: int
    num_refused: int
    refused_bytes: int
    live_bytes: int


@contextmanager
def allocating_from(pool: Pool) -> Iterator[None]:
    """Allocate this thread's tensors from `pool` in the block; modes may be nested."""
    previous = allocator.enter(pool)
    try:
        yield
    finally:
        allocator.leave(previous)


def is_active() -> bool:
    """Return whether this thread's tensors come from a pool."""
    library = allocator.load().library
    return library is not None and library.dithc_allocator_pool() is not None


def counters() -> Counters:
    """Return the counters of the extension."""
    numbers = (ctypes.c_int64 * 5)()
    allocator.load().library.dithc_allocator_counters(numbers)
    return Counters(*numbers)
