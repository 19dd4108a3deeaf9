"""Contexts of operators: pinned threads, scratch memory, and the cache sizes that blocking uses."""

import ctypes
import errno
import mmap
import socket
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import ceil
from pathlib import Path

import torch

from dithc.core.logging import get_logger
from dithc.engine.hardware import Machine as Node
from dithc.engine.hardware import discover_machine, plan_cores
from dithc.engine.native.loading import instruction_set as best_isa
from dithc.engine.native.loading import isa_number, library, loaded
from dithc.engine.native.signatures import Machine, OpenMP

log = get_logger(__name__)

# Time that an idle thread polls for work before it sleeps. Between two calls Python takes 20 to 60 microseconds with warm
# caches, and waking a sleeping thread takes about as long as a small operator. Five times as long gained nothing.
SPIN_NANOSECONDS = 100_000
# With more threads than CPUs, a polling thread blocks the thread that has work.
SHORTEST_SPIN_NANOSECONDS = 1
PAGE_BYTES = 4096
OPENMP_BACKEND = "ATen parallel backend: OpenMP"
OPENMP_NAMES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


@dataclass(frozen=True, kw_only=True)
class ThreadLayout:
    """Placement of the threads of a context.

    Attributes:
        cpus: CPU of each thread, empty if the system places threads. Thread 0, the caller of an operator, is never
            pinned, and moves to its CPU if it runs elsewhere.
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
_layouts: dict[int, ThreadLayout] = {}
_creation = threading.Lock()
_borrowers = 0
_claims: dict[int, socket.socket] = {}
_claiming = threading.Lock()


def context(*, isa: str | None = None, num_threads: int | None = None) -> int:
    """Return the address of the hc_context of an instruction set and number of threads, created at first use.

    It is never destroyed, because at exit a daemon thread may still run an operator. A new context makes the others
    release their scratch memory. Without `isa` it is that of `instruction_set()`. Without `num_threads` it has torch's number of
    threads, and torch's threads themselves after `borrow`.

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
            for existing in _contexts.values():
                loaded().hc_context_trim(existing)
            _contexts[key] = _create(*key)
        return _contexts[key]


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


@cache
def torch_openmp() -> OpenMP | str:
    """Return the OpenMP functions of torch's operators, from libgomp or LLVM's, or the reason for their absence."""
    if OPENMP_BACKEND not in torch.__config__.parallel_info():
        return "this torch does not run on OpenMP"
    library_of_torch = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    try:
        handle = ctypes.CDLL(str(library_of_torch))
        return OpenMP(*(ctypes.cast(getattr(handle, name), ctypes.c_void_p) for name in OPENMP_NAMES))
    except (OSError, AttributeError) as error:
        return f"the OpenMP runtime of torch cannot be used ({error})"


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


def new_context(node: Node, layout: ThreadLayout, *, isa: str, spin_nanoseconds: int = SPIN_NANOSECONDS) -> int:
    """Create an hc_context and return its address; MemoryError or ValueError: the system refused a resource."""
    machine = Machine(
        isa_number(isa),
        layout.num_threads,
        _integers(layout.cpus),
        *(cache_bytes(node, level) for level in (1, 2, 3)),
        spin_nanoseconds,
        len(layout.clusters),
        _integers(layout.nodes),
        ctypes.pointer(functions) if layout.lent and isinstance(functions := torch_openmp(), OpenMP) else None,
    )
    created = ctypes.c_void_p()
    loaded().hc_context_create(ctypes.byref(machine), ctypes.byref(created))
    assert created.value is not None
    return created.value


def _integers(values: tuple[int, ...]) -> "ctypes.Array[ctypes.c_int] | None":
    return (ctypes.c_int * len(values))(*values) if values else None


def planned_layout(node: Node, num_threads: int) -> ThreadLayout:
    """Return the layout of a number of threads on a machine. Memory is bound if clusters are near different nodes."""
    placed = thread_places(node, num_threads)
    indices = [cluster for _, cluster in placed]
    count = max(1, num_equal_clusters(indices))
    size, extra = divmod(num_threads, count)  # as hc_part cuts
    starts = [part * size + min(part, extra) for part in range(count + 1)]
    clusters = tuple(range(start, stop) for start, stop in pairwise(starts))
    node_of_cluster = {cluster.index: cluster.node for cluster in node.clusters}
    nodes = [node_of_cluster.get(indices[cluster[0]]) for cluster in clusters] if count > 1 else []
    numa_nodes = tuple(number for number in nodes if number is not None)
    is_bound = len(numa_nodes) == count and len(set(numa_nodes)) > 1
    return ThreadLayout(
        num_threads=num_threads,
        cpus=tuple(cpu for cpu, _ in placed),
        clusters=clusters,
        nodes=numa_nodes if is_bound else (),
    )


def num_clusters(num_threads: int) -> int:
    return len(planned_layout(discover_machine(), num_threads).clusters)


def can_bind(nodes: Iterable[int]) -> bool:
    """Return whether the system binds a page to each of these memory nodes."""
    page = mmap.mmap(-1, PAGE_BYTES)
    try:
        for node in nodes:
            loaded().hc_bind(ctypes.addressof(ctypes.c_char.from_buffer(page)), PAGE_BYTES, node)
    except ValueError:
        return False
    return True


def thread_places(node: Node, num_threads: int) -> list[tuple[int, int]]:
    """Return CPU and cluster of each thread in the order of the cores; empty if threads are not pinned.

    Threads are pinned if they fill all available cores, or all except those that the core plan keeps for communication
    and data movement, and no control group grants less time. Fewer threads probably share the cores.
    """
    allowed, cores = set(node.limits.allowed_cpus), list(node.visible_cores)
    if not cores:
        return []
    (rank,) = plan_cores(node, ranks_per_node=1).ranks
    if not rank.pin:
        return []
    compute = set(rank.compute)
    all_cpus = [(cpu, core.cluster) for core in cores for cpu in core.cpus if cpu in allowed]
    first_cpus = [(next(cpu for cpu in core.cpus if cpu in allowed), core.cluster) for core in cores]
    planned_cpus = [place for place, core in zip(first_cpus, cores, strict=True) if core.index in compute]
    return next((places for places in (first_cpus, planned_cpus, all_cpus) if len(places) == num_threads), [])


def num_equal_clusters(clusters: list[int]) -> int:
    """Return the number of clusters of the threads, or 1 if cluster sizes differ by more than one thread."""
    sizes = Counter(clusters).values()
    return len(sizes) if sizes and max(sizes) - min(sizes) <= 1 else 1


def cache_bytes(node: Node, level: int) -> int:
    """Return one core's share of the data cache of a level, or 0 if unknown."""
    siblings = max((len(core.cpus) for core in node.cores), default=1)
    for candidate in node.caches:
        if candidate.level == level and candidate.kind != "Instruction":
            return candidate.size_bytes // max(1, candidate.cpus_per_cache // siblings)
    return 0


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
