"""The context that operators run in: pinned threads of our own, scratch memory, the cache sizes that blocking follows."""

import atexit
import ctypes
import os
import threading
from collections import Counter

import torch

from dithc.hardware import Machine as Node
from dithc.hardware import discover
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
    cpus = cpus_of_threads(node, num_threads)
    array = (ctypes.c_int * num_threads)(*cpus) if cpus else None
    caches = [cache_bytes(node, level) for level in (1, 2, 3)]
    num_clusters = clusters_of_threads(node) if cpus else 1
    machine = Machine(isa_number(isa), num_threads, array, *caches, SPIN_NANOSECONDS, num_clusters)
    created = ctypes.c_void_p()
    handle.hc_context_create(ctypes.byref(machine), ctypes.byref(created))
    assert created.value is not None
    atexit.register(_destroy, created.value, os.getpid())
    return created.value


def _destroy(address: int, owner: int) -> None:
    """Ends the threads; a forked child has none of them."""
    handle = library()
    if handle is not None and os.getpid() == owner:
        _contexts.clear()
        handle.hc_context_destroy(address)


def cpus_of_threads(node: Node, num_threads: int) -> list[int] | None:
    """The CPU of each thread, in the order of the cores; None, nobody pinned, unless the threads fill all that we may use.

    Where they do not, another process probably shares the cores, and would be pinned to the same ones.
    """
    allowed = set(node.limits.allowed_cpus)
    siblings = [[cpu for cpu in core.cpus if cpu in allowed] for core in node.visible_cores]
    for cpus in ([core[0] for core in siblings], [cpu for core in siblings for cpu in core]):
        if num_threads == len(cpus):
            return cpus
    return None


def clusters_of_threads(node: Node) -> int:
    """The number of clusters that the cores belong to, which the library cuts work over; 1 where their sizes differ."""
    sizes = Counter(core.cluster for core in node.visible_cores)
    return len(sizes) if len(set(sizes.values())) == 1 else 1


def cache_bytes(node: Node, level: int) -> int:
    """One core's share of the data cache of a level; 0 where it is not known."""
    siblings = max((len(core.cpus) for core in node.cores), default=1)
    for cache in node.caches:
        if cache.level == level and cache.kind != "Instruction":
            return cache.size_bytes // max(1, cache.cpus_per_cache // siblings)
    return 0
