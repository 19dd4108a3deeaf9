"""Contexts of operators: pinned threads, scratch memory, and the cache sizes that blocking uses."""

import ctypes
import mmap
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import torch

from dithc.hardware import Machine as Node
from dithc.hardware import discover, plan
from dithc.log import logger
from dithc.native.claims import claim
from dithc.native.loading import isa as best_isa
from dithc.native.loading import isa_number, library
from dithc.native.openmp import runtime
from dithc.native.signatures import Machine

log = logger(__name__)

# Time that an idle thread polls for work before it sleeps. Operators of one call follow immediately. Between two calls
# Python takes 20 to 60 microseconds with warm caches, and waking a sleeping thread takes about as long as a small
# operator. Five times as long gained nothing in a training step, in which caches are cold and Python takes longer.
SPIN_NANOSECONDS = 100_000
# With more threads than CPUs, a polling thread blocks the thread that has work.
SHORTEST_SPIN_NANOSECONDS = 1
PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Placement of the threads of a context.

    Attributes:
        num_threads: Number of threads. Thread 0 is the caller of an operator, which is never pinned.
        cpus: CPU of each thread. Thread 0 moves to its CPU if it runs elsewhere. Empty if the system places threads.
        clusters: Numbers of the threads of each cluster.
        nodes: Memory node of each cluster, to which its part of new blocks is bound; empty without binding.
        lent: Whether the threads are the threads of torch's operators.
    """

    num_threads: int
    cpus: tuple[int, ...]
    clusters: tuple[range, ...]
    nodes: tuple[int, ...]
    lent: bool = False


_contexts: dict[tuple[str, int, bool], int] = {}
_layouts: dict[int, Layout] = {}
_creation = threading.Lock()
_borrowers = 0


def context(*, isa: str | None = None, num_threads: int | None = None) -> int:
    """Return the address of the hc_context of an instruction set and number of threads, created at first use.

    It is never destroyed, because at exit a daemon thread may still run an operator. A new context makes contexts with
    other numbers of threads release their scratch memory.

    Args:
        isa: Instruction set of this CPU; None uses the fastest, or the value of HCOPS_ISA.
        num_threads: None uses torch's number of threads, so that `torch.set_num_threads` applies to both, and torch's
            threads themselves after `borrow`.

    Raises:
        UserError: This CPU lacks the instruction set.
        MemoryError, ValueError: The system refused memory or threads.
    """
    key = (isa or best_isa(), num_threads or torch.get_num_threads(), _borrowers > 0 and num_threads is None)
    handle = _contexts.get(key)
    if handle is not None:
        return handle
    with _creation:
        if key not in _contexts:
            _trim(_contexts.values())
            _contexts[key] = _create(*key)
        return _contexts[key]


def layout(*, num_threads: int | None = None) -> Layout:
    """Return the placement of the threads of `context(num_threads=num_threads)`."""
    return _layouts[context(num_threads=num_threads)]


def borrow() -> str | None:
    """Create contexts with torch's threads until `give_back` is called as often; return None, or the reason for a
    failure.

    torch's threads spin on their cores for milliseconds after each of its operators. If both sets of threads alternate,
    they compete for the cores. An operator then runs as a region of torch's OpenMP runtime, on as many threads as torch
    uses. Each thread that calls operators has a set of such threads, as for torch's operators. In a child of fork(),
    operators of the parent's contexts run on the caller alone.
    """
    global _borrowers
    if library() is None:
        return "the library is missing"
    if runtime().functions is None:
        return runtime().words
    _borrowers += 1
    return None


def give_back() -> None:
    """Undo one call of `borrow`."""
    global _borrowers
    _borrowers = max(0, _borrowers - 1)


def is_borrowing() -> bool:
    """Return whether contexts use torch's threads now."""
    return _borrowers > 0


def _trim(handles: Iterable[int]) -> None:
    of_library = library()
    assert of_library is not None, "a context needs the library"
    for handle in handles:
        of_library.hc_context_trim(handle)


def _create(isa: str, num_threads: int, lent: bool = False) -> int:
    node = discover()
    wanted = planned_layout(node, num_threads)
    if lent:
        wanted = replace(wanted, cpus=(), nodes=(), lent=True)
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
    if wanted.nodes and not can_bind(wanted.nodes):
        log.warning(
            "memory: the system refuses to bind pages to nodes %s; they come from the node of the thread that first touches them",
            wanted.nodes,
        )
        wanted = replace(wanted, nodes=())
    taken = claim(wanted.cpus)
    if taken:
        log.warning("kernels: another process of dithc has pinned threads to CPU(s) %s too: both will be slower", taken)
    try:
        created = new_context(node, wanted, isa=isa, spin_nanoseconds=spin)
    except ValueError as error:
        if not wanted.cpus:
            raise
        log.warning("kernels: threads are not pinned to CPUs %s: %s", list(wanted.cpus), error)
        wanted = replace(wanted, cpus=())
        created = new_context(node, wanted, isa=isa, spin_nanoseconds=spin)
    _layouts[created] = wanted
    return created


def new_context(node: Node, wanted: Layout, *, isa: str, spin_nanoseconds: int = SPIN_NANOSECONDS) -> int:
    """Create an hc_context and return its address.

    Raises:
        MemoryError, ValueError: The system refused memory or threads, or their placement.
    """
    handle = library()
    assert handle is not None, "a context needs the library"
    machine = Machine(
        isa_number(isa),
        wanted.num_threads,
        _integers(wanted.cpus),
        *(cache_bytes(node, level) for level in (1, 2, 3)),
        spin_nanoseconds,
        len(wanted.clusters),
        _integers(wanted.nodes),
        ctypes.pointer(functions) if wanted.lent and (functions := runtime().functions) is not None else None,
    )
    created = ctypes.c_void_p()
    handle.hc_context_create(ctypes.byref(machine), ctypes.byref(created))
    assert created.value is not None
    return created.value


def _integers(values: tuple[int, ...]) -> "ctypes.Array[ctypes.c_int] | None":
    return (ctypes.c_int * len(values))(*values) if values else None


def planned_layout(node: Node, num_threads: int) -> Layout:
    """Return places, clusters and memory nodes for a number of threads on a machine, without side effects.

    Memory is bound if the clusters are near different nodes. A machine with one node leaves no choice.
    """
    placed = places_of_threads(node, num_threads)
    indices = [cluster for _, cluster in placed]
    count = max(1, num_equal_clusters(indices))
    edges = [sum(_share(num_threads, count, part) for part in range(upto)) for upto in range(count + 1)]
    clusters = tuple(range(start, stop) for start, stop in pairwise(edges))
    near = {cluster.index: cluster.node for cluster in node.clusters}
    nodes = [near.get(indices[cluster[0]]) for cluster in clusters] if count > 1 else []
    known = tuple(number for number in nodes if number is not None)
    is_bound = len(known) == count and len(set(known)) > 1
    return Layout(
        num_threads=num_threads,
        cpus=tuple(cpu for cpu, _ in placed),
        clusters=clusters,
        nodes=known if is_bound else (),
    )


def num_clusters(num_threads: int) -> int:
    """Return the number of clusters among which this machine's context splits `num_threads` threads."""
    return len(planned_layout(discover(), num_threads).clusters)


def _share(length: int, parts: int, part: int) -> int:
    """Return the length of a part as hc_part cuts."""
    return length // parts + (part < length % parts)


def can_bind(nodes: Iterable[int]) -> bool:
    """Return whether the system binds a page to each of these memory nodes."""
    handle = library()
    assert handle is not None, "binding needs the library"
    page = mmap.mmap(-1, PAGE_BYTES)
    try:
        for node in nodes:
            handle.hc_bind(ctypes.addressof(ctypes.c_char.from_buffer(page)), PAGE_BYTES, node)
    except ValueError:
        return False
    return True


def places_of_threads(node: Node, num_threads: int) -> list[tuple[int, int]]:
    """Return CPU and cluster of each thread in the order of the cores; empty if threads are not pinned.

    Threads are pinned if they fill all available cores, or all except the cores that the core plan keeps for
    communication and data movement. With fewer threads, another process probably shares the cores and would pin to the
    same cores. Threads are not pinned if a control group grants less time than there are CPUs.
    """
    allowed, cores = set(node.limits.allowed_cpus), list(node.visible_cores)
    if not cores:
        return []
    (only,) = plan(node, ranks_per_node=1).ranks
    if not only.pin:
        return []
    compute = set(only.compute)
    every_cpu = [(cpu, core.cluster) for core in cores for cpu in core.cpus if cpu in allowed]
    first_cpus = [(next(cpu for cpu in core.cpus if cpu in allowed), core.cluster) for core in cores]
    of_plan = [place for place, core in zip(first_cpus, cores, strict=True) if core.index in compute]
    return next((places for places in (first_cpus, of_plan, every_cpu) if len(places) == num_threads), [])


def num_equal_clusters(clusters: list[int]) -> int:
    """Return the number of clusters of the threads, or 1 if cluster sizes differ by more than one thread.

    The library cuts work over equal runs of threads. A difference of one puts one thread in the neighbor's run.
    """
    sizes = Counter(clusters).values()
    return len(sizes) if sizes and max(sizes) - min(sizes) <= 1 else 1


def cache_bytes(node: Node, level: int) -> int:
    """Return one core's share of the data cache of a level, or 0 if unknown."""
    siblings = max((len(core.cpus) for core in node.cores), default=1)
    for cache in node.caches:
        if cache.level == level and cache.kind != "Instruction":
            return cache.size_bytes // max(1, cache.cpus_per_cache // siblings)
    return 0
