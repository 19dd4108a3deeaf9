"""The context that operators run in: pinned threads of our own, scratch memory, the cache sizes that blocking follows."""

import ctypes
import threading
from collections import Counter

import torch

from dithc.hardware import Machine as Node
from dithc.hardware import discover, plan
from dithc.native.loading import isa as best_isa
from dithc.native.loading import isa_number, library
from dithc.native.signatures import Machine

# An idle thread looks for work this long before it sleeps. Between two operators of a training step Python takes 20 to 60
# microseconds, and waking a thread that sleeps takes about as long as the small operators themselves.
SPIN_NANOSECONDS = 100_000

_contexts: dict[tuple[str, int], int] = {}
_creation = threading.Lock()


def context(*, isa: str | None = None, num_threads: int | None = None) -> int:
    """The address of the hc_context of an instruction set and a number of threads; made at first use, then kept.

    It is never destroyed: at exit a thread that nobody waits for may still be inside an operator.

    Args:
        isa: a level that this CPU has; None takes the best one, or what HCOPS_ISA names.
        num_threads: None takes torch's number of threads, so that one setting (`torch.set_num_threads`) holds for both.

    Raises:
        UserError: this CPU lacks the instruction set.
        MemoryError, ValueError: the system refused memory or threads.
    """
    key = (isa or best_isa(), num_threads or torch.get_num_threads())
    handle = _contexts.get(key)
    if handle is not None:
        return handle
    with _creation:
        if key not in _contexts:
            _contexts[key] = _create(*key)
        return _contexts[key]


def _create(isa: str, num_threads: int) -> int:
    handle = library()
    assert handle is not None, "a context needs the library"
    node = discover()
    placed = places_of_threads(node, num_threads)
    cpus = (ctypes.c_int * num_threads)(*(cpu for cpu, _ in placed)) if placed else None
    caches = [cache_bytes(node, level) for level in (1, 2, 3)]
    num_clusters = max(1, num_equal_clusters([cluster for _, cluster in placed]))
    machine = Machine(isa_number(isa), num_threads, cpus, *caches, SPIN_NANOSECONDS, num_clusters)
    created = ctypes.c_void_p()
    handle.hc_context_create(ctypes.byref(machine), ctypes.byref(created))
    assert created.value is not None
    return created.value


def places_of_threads(node: Node, num_threads: int) -> list[tuple[int, int]]:
    """CPU and cluster of each thread, in the order of the cores; empty, nobody pinned, where the threads are fewer.

    Threads are pinned where they fill all cores that we may use, or all but those that the core plan keeps for
    communication and data movement. Where they do not, another process probably shares the cores, and would be pinned
    to the same ones.
    """
    allowed, cores = set(node.limits.allowed_cpus), list(node.visible_cores)
    if not cores:
        return []
    compute = set(plan(node, ranks_per_node=1).ranks[0].compute)
    every_cpu = [(cpu, core.cluster) for core in cores for cpu in core.cpus if cpu in allowed]
    first_cpus = [(next(cpu for cpu in core.cpus if cpu in allowed), core.cluster) for core in cores]
    of_plan = [place for place, core in zip(first_cpus, cores, strict=True) if core.index in compute]
    return next((places for places in (first_cpus, of_plan, every_cpu) if len(places) == num_threads), [])


def num_equal_clusters(clusters: list[int]) -> int:
    """The number of clusters that the threads belong to, or 1 where some cluster has two threads more than another.

    The library cuts work over equal runs of threads; one thread more or less puts one thread in the neighbour's run.
    """
    sizes = Counter(clusters).values()
    return len(sizes) if sizes and max(sizes) - min(sizes) <= 1 else 1


def cache_bytes(node: Node, level: int) -> int:
    """One core's share of the data cache of a level; 0 where it is not known."""
    siblings = max((len(core.cpus) for core in node.cores), default=1)
    for cache in node.caches:
        if cache.level == level and cache.kind != "Instruction":
            return cache.size_bytes // max(1, cache.cpus_per_cache // siblings)
    return 0
