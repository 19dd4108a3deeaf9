"""Plain Python threads for compiled loops, as many as torch has.

Compiled loops release the GIL, so these threads run in parallel. torch's pool is unchanged.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from dithc.engine.hcops.numba.compiler import KernelEntry

# A smaller number of elements does not justify a hand-over to another thread, which takes about 30 microseconds.
ELEMENTS_PER_THREAD = 65536


class _Pool:
    """Executor and its size. A child process starts with an empty pool, because threads do not survive a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.executor: ThreadPoolExecutor | None = None
        self.size = 0

    def submit(self, parts: Sequence[Callable[[], None]]) -> list[Future[None]]:
        """Submit as many of the parts, from the first, as the interpreter accepts: none when it is ending."""
        futures: list[Future[None]] = []
        with self.lock:
            if self.executor is None or self.size < len(parts):
                if self.executor is not None:
                    self.executor.shutdown(wait=False)  # parts submitted earlier still run
                self.executor = ThreadPoolExecutor(len(parts), thread_name_prefix="dithc-numba")
                self.size = len(parts)
            with contextlib.suppress(RuntimeError):
                for part in parts:
                    futures.append(self.executor.submit(part))
        return futures

    def reset(self) -> None:
        self.lock, self.executor, self.size = threading.Lock(), None, 0


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.reset)


def num_threads(elements: int) -> int:
    """Return the number of threads for `elements` of work, at most torch's number."""
    return max(1, min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD))


def spread(parts: Sequence[Callable[[], None]]) -> None:
    """Run all parts in parallel, the first one here. Return, or raise an error of a part, after all parts have ended."""
    futures = _pool.submit(parts[1:]) if len(parts) > 1 else []
    try:
        for part in (*parts[:1], *parts[1 + len(futures) :]):
            part()
    finally:
        wait(futures)
    for future in futures:
        future.result()


def run(kernel: KernelEntry, count: int, *arguments: Any, elements: int, step: int = 1) -> None:
    """Call kernel(begin, end, *arguments) over 0 to `count`, cut among threads at multiples of `step`."""
    if count == 0:
        return
    kernel.prepare(0, count, *arguments)
    threads = num_threads(elements)
    size = -(-count // (threads * step)) * step
    spread(
        [
            lambda begin=begin: kernel(begin, min(begin + size, count), *arguments)  # type: ignore[misc]
            for begin in range(0, count, size)
        ]
    )
