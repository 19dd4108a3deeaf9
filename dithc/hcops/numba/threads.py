"""Plain Python threads that compiled loops run on: as many as torch has, none of them torch's.

Compiled loops release the interpreter's lock, so these threads really run side by side, and torch's pool is left as it was.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from dithc.hcops.numba.compiler import Kernel

# Fewer elements than this are not worth a hand-over to another thread, which takes some 30 microseconds.
ELEMENTS_PER_THREAD = 65536


class _Pool:
    """The executor and its size; a child process starts with an empty one, since threads do not survive a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.executor: ThreadPoolExecutor | None = None
        self.size = 0

    def submit(self, parts: Sequence[Callable[[], None]]) -> list[Future[None]]:
        """Hands over as many of the parts, from the first, as the interpreter still takes: none when it is ending."""
        taken: list[Future[None]] = []
        with self.lock:
            if self.executor is None or self.size < len(parts):
                if self.executor is not None:
                    self.executor.shutdown(wait=False)  # what it was given still runs
                self.executor = ThreadPoolExecutor(len(parts), thread_name_prefix="dithc-numba")
                self.size = len(parts)
            with contextlib.suppress(RuntimeError):
                for part in parts:
                    taken.append(self.executor.submit(part))
        return taken

    def reset(self) -> None:
        self.lock, self.executor, self.size = threading.Lock(), None, 0


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.reset)


def num_threads(elements: int) -> int:
    """How many threads `elements` of work deserve, at most torch's number."""
    return max(1, min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD))


def spread(parts: Sequence[Callable[[], None]]) -> None:
    """Runs all parts side by side, the first of them here; returns, or raises what a part raised, when none runs any more."""
    others = _pool.submit(parts[1:]) if len(parts) > 1 else []
    try:
        for part in (*parts[:1], *parts[1 + len(others) :]):
            part()
    finally:
        wait(others)
    for other in others:
        other.result()


def run(kernel: Kernel, count: int, *arguments: Any, elements: int, step: int = 1) -> None:
    """kernel(begin, end, *arguments) over 0 to `count`, cut among threads at multiples of `step`."""
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
