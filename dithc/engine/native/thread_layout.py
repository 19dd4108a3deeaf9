"""Placement of threads on cores and memory nodes, and contexts of kernels with such a placement."""

import ctypes
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch

from dithc.engine.hardware import Machine as Node
from dithc.engine.hardware import discover_machine, plan_cores
from dithc.engine.native.loading import isa_number, loaded
from dithc.engine.native.signatures import Machine, OpenMP

# Time that an idle thread polls for work before it sleeps. Between two calls Python takes 20 to 60 microseconds with warm
# caches, and waking a sleeping thread takes about as long as a small operator. Five times as long gained nothing.
SPIN_NANOSECONDS = 100_000
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
