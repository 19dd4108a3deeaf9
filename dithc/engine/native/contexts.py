"""Contexts of operators: one per instruction set and number of threads, created at first use."""

import ctypes
import errno
import mmap
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil

import torch

from dithc.core.logging import get_logger
from dithc.engine.hardware import discover_machine
from dithc.engine.native.instruction_sets import instruction_set
from dithc.engine.native.loading import library, loaded
from dithc.engine.native.thread_layout import SPIN_NANOSECONDS, ThreadLayout, new_context, planned_layout, torch_openmp

log = get_logger(__name__)

# With more threads than CPUs, a polling thread blocks the thread that has work.
SHORTEST_SPIN_NANOSECONDS = 1
PAGE_BYTES = 4096


_contexts: dict[tuple[str, int, bool, bool], int] = {}
_layouts: dict[int, ThreadLayout] = {}
_creation = threading.Lock()
_borrowers = 0
_claims: dict[int, socket.socket] = {}
_claiming = threading.Lock()
_local = threading.local()  # `is_single` of `single_thread`


def context(*, isa: str | None = None, num_threads: int | None = None) -> int:
    """Return the address of the hc_context of an instruction set and number of threads, created at first use.

    It is never destroyed, because at exit a daemon thread may still run an operator. A new context makes the others
    release their scratch memory. Without `isa` it is that of `instruction_set()`. Without `num_threads` it has torch's number of
    threads, and torch's threads themselves after `borrow`.

    Raises:
        UserError: This CPU lacks the instruction set.
        MemoryError, ValueError: The system refused memory or threads.
    """
    if is_single := num_threads is None and getattr(_local, "is_single", False):
        num_threads = 1
    is_lent = _borrowers > 0 and num_threads is None
    key = (isa or instruction_set(), num_threads or torch.get_num_threads(), is_lent, is_single)
    handle = _contexts.get(key)
    if handle is not None:
        return handle
    with _creation:
        if key not in _contexts:
            for existing in _contexts.values():
                loaded().hc_context_trim(existing)
            _contexts[key] = _create(*key[:3])
        return _contexts[key]


@contextmanager
def single_thread() -> Iterator[None]:
    """Let operators that this thread calls compute on it alone, at the same time as operators of other threads."""
    previous, _local.is_single = getattr(_local, "is_single", False), True
    try:
        yield
    finally:
        _local.is_single = previous


def layout(*, num_threads: int | None = None) -> ThreadLayout:
    return _layouts[context(num_threads=num_threads)]


def borrow() -> str | None:
    """Create contexts with torch's threads until `give_back` is called as often; return the reason for a failure.

    torch's threads spin on their cores for milliseconds after each operator, and would compete with others for them.
    An operator then runs as a region of torch's OpenMP runtime, on as many threads as torch uses, for each thread that
    calls operators. In a child of fork(), operators of the parent's contexts run on the caller alone.
    """
    global _borrowers
    if library() is None:
        return "the library is missing"
    if isinstance(functions := torch_openmp(), str):
        return functions
    _borrowers += 1
    return None


def give_back() -> None:
    global _borrowers
    _borrowers = max(0, _borrowers - 1)


def is_borrowing() -> bool:
    return _borrowers > 0


def _create(isa: str, num_threads: int, lent: bool = False) -> int:
    node = discover_machine()
    layout = planned_layout(node, num_threads)
    if lent:
        layout = replace(layout, cpus=(), nodes=(), lent=True)
    quota = node.limits.cpu_quota
    usable = len(node.limits.allowed_cpus) if quota is None else min(len(node.limits.allowed_cpus), ceil(quota))
    spin = SPIN_NANOSECONDS
    if num_threads > usable:
        spin = SHORTEST_SPIN_NANOSECONDS
        log.warning(
            "kernels: %d threads share %d CPU(s): they sleep as soon as they wait; set as many threads as there are CPUs",
            num_threads,
            usable,
        )
    if layout.nodes and not can_bind(layout.nodes):
        log.warning(
            "memory: the system refuses to bind pages to nodes %s; they come from the node of the thread that first touches them",
            layout.nodes,
        )
        layout = replace(layout, nodes=())
    busy = claim(layout.cpus)
    if busy:
        log.warning("kernels: another process of dithc has pinned threads to CPU(s) %s too: both will be slower", busy)
    try:
        created = new_context(node, layout, isa=isa, spin_nanoseconds=spin)
    except ValueError as error:
        if not layout.cpus:
            raise
        log.warning("kernels: threads are not pinned to CPUs %s: %s", list(layout.cpus), error)
        layout = replace(layout, cpus=())
        created = new_context(node, layout, isa=isa, spin_nanoseconds=spin)
    _layouts[created] = layout
    return created


def can_bind(nodes: Iterable[int]) -> bool:
    """Return whether the system binds a page to each of these memory nodes."""
    page = mmap.mmap(-1, PAGE_BYTES)
    try:
        for node in nodes:
            loaded().hc_bind(ctypes.addressof(ctypes.c_char.from_buffer(page)), PAGE_BYTES, node)
    except ValueError:
        return False
    return True


def claim(cpus: Iterable[int]) -> list[int]:
    """Claim CPUs for the lifetime of this process; return CPUs that another process has claimed.

    Pinned teams of two processes on one CPU would wait for each other. A process claims a CPU by a socket in Linux's
    abstract namespace. Its name is in use until the process ends.
    """
    with _claiming:
        return [cpu for cpu in sorted(set(cpus) - _claims.keys()) if _is_in_use(cpu)]


def _is_in_use(cpu: int) -> bool:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0dithc pinned CPU {cpu}")
    except OSError as error:
        name.close()
        return error.errno == errno.EADDRINUSE
    _claims[cpu] = name
    return False
