"""Binding of this process to its planned cores, and verification from the kernel. Only this file has side effects."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from dithc.core.logging import get_logger
from dithc.engine.hardware.core_plan import RankPlan
from dithc.engine.hardware.cpu_lists import compact_cpus
from dithc.engine.hardware.limits import mask_of, online_cpus, read_text
from dithc.engine.hardware.machine import Core

log = get_logger(__name__)

Trouble = Literal["process mask", "thread mask", "too few CPUs", "threads on one CPU", "shared with a rank"]


@dataclass(frozen=True, kw_only=True)
class ThreadAffinity:
    thread: int
    name: str
    allowed_cpus: tuple[int, ...]


@dataclass(frozen=True)
class BindingMismatch:
    """Difference between plan and actual placement."""

    kind: Trouble
    text: str


def apply(rank_plan: RankPlan) -> int:
    """Bind all threads to the planned CPUs unless they are placed already. Return the compute threads to start."""
    planned, current = set(rank_plan.cpus), os.sched_getaffinity(0)
    if not rank_plan.pin or current == planned:
        return rank_plan.num_threads
    if not planned <= current:
        log.warning(
            f"cores: the launcher allows CPUs {sorted(current)}, the plan needs {sorted(planned)}; keeping the launcher's "
            "binding"
        )
        return min(rank_plan.num_threads, len(current))
    rebind(None, planned)
    log.info("cores: bound to CPUs %s, %d compute thread(s)", sorted(planned), rank_plan.num_threads)
    return rank_plan.num_threads


def rebind(old: Collection[int] | None, new: Collection[int]) -> None:
    """Bind the threads of this process with the mask `old`, or all threads for None, to `new`."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError):  # the thread has ended since the folder was read
            if old is None or os.sched_getaffinity(thread) == old:
                os.sched_setaffinity(thread, new)


def verify(
    rank_plan: RankPlan,
    *,
    num_threads: int | None = None,
    gather: Callable[[tuple[int, ...]], Sequence[Collection[int]]] | None = None,
    cores: Sequence[Core] = (),
    communication: Collection[int] = (),
    root: str | Path = "/",
) -> list[BindingMismatch]:
    """Return and log as warnings the differences between the plan and the CPUs of every thread of this process.

    Args:
        num_threads: Compute threads of this rank; by default the plan's.
        gather: Collective call that returns the CPUs of all ranks of this node; None checks only this rank.
        cores: Cores of the machine, to detect ranks on two CPUs of one core.
        communication: Additional CPUs of communication threads, which may share one.
    """
    proc = Path(root) / "proc/self"
    online = online_cpus(Path(root))
    allowed = mask_of(proc / "status", online=online)
    threads = _threads(proc / "task", online)
    requested = rank_plan.cpus if rank_plan.pin else None
    compute = rank_plan.num_threads if num_threads is None else num_threads
    differences: list[BindingMismatch] = []
    masks = [()] if gather is None else gather(allowed)  # every rank must participate, even without a known mask
    if allowed:
        relevant = [
            thread for thread in threads if not thread.allowed_cpus or set(thread.allowed_cpus) - set(communication)
        ]
        differences += [*_check_masks(requested, allowed, relevant), *_check_threads(compute, allowed, relevant)]
        differences += _check_ranks(rank_plan, compute, masks, cores)
    else:
        log.warning("cores: placement cannot be verified, %s lists no CPUs", proc / "status")
    for difference in differences:
        log.warning("cores: %s", difference.text)
    if allowed and not differences:
        log.info("cores: verified, %d thread(s) on CPUs %s", len(threads), compact_cpus(allowed))
    return differences


def overlaps(
    cpus_of_ranks: Sequence[Collection[int]], *, cores: Sequence[Core] = ()
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return pairs of ranks that share a core, with the CPUs of the first rank on shared cores.

    A CPU outside of `cores` counts as a separate core.
    """
    siblings: dict[int, tuple[int, ...]] = {cpu: core.cpus for core in cores for cpu in core.cpus}
    pairs = []
    for (first, first_cpus), (second, second_cpus) in combinations(enumerate(cpus_of_ranks), 2):
        shared = tuple(cpu for cpu in sorted(first_cpus) if set(second_cpus).intersection(siblings.get(cpu, (cpu,))))
        if shared:
            pairs.append((first, second, shared))
    return tuple(pairs)


def _check_masks(
    requested: tuple[int, ...] | None, allowed: tuple[int, ...], threads: Sequence[ThreadAffinity]
) -> list[BindingMismatch]:
    """Compare the masks of the process and of its threads with the requested CPUs."""
    planned = set(allowed if requested is None else requested)
    owner = "requested" if requested is not None else "the process is allowed"
    mismatches = []
    if requested is not None and set(allowed) != planned:
        text = f"CPUs {compact_cpus(requested)} were requested, the kernel allows {compact_cpus(allowed)}"
        mismatches.append(BindingMismatch("process mask", text))
    elsewhere: dict[tuple[int, ...], list[ThreadAffinity]] = defaultdict(list)
    for thread in threads:
        if outside := tuple(cpu for cpu in thread.allowed_cpus if cpu not in planned):
            elsewhere[outside].append(thread)
    for outside, members in elsewhere.items():
        text = (
            f"{len(members)} thread(s) ({_names(members)}) may run on CPUs {compact_cpus(outside)}, "
            f"besides {compact_cpus(sorted(planned))} that {'were ' * (requested is not None)}{owner}"
        )
        mismatches.append(BindingMismatch("thread mask", text))
    return mismatches


def _check_threads(compute: int, allowed: tuple[int, ...], threads: Sequence[ThreadAffinity]) -> list[BindingMismatch]:
    """Detect more compute threads than CPUs, and several threads bound to one CPU while other CPUs are free."""
    mismatches = []
    if compute > len(allowed):
        text = f"{compute} compute thread(s) on {len(allowed)} CPU(s): they share CPUs"
        mismatches.append(BindingMismatch("too few CPUs", text))
    bound: dict[int, list[ThreadAffinity]] = defaultdict(list)
    for thread in threads:
        if len(thread.allowed_cpus) == 1 < len(allowed):
            bound[thread.allowed_cpus[0]].append(thread)
    for cpu, members in sorted(bound.items()):
        if len(members) > 1:
            text = f"{len(members)} threads ({_names(members)}) are bound to CPU {cpu} only"
            mismatches.append(BindingMismatch("threads on one CPU", text))
    return mismatches


def _check_ranks(
    rank_plan: RankPlan, compute: int, masks: Sequence[Collection[int]], cores: Sequence[Core]
) -> list[BindingMismatch]:
    """Detect later ranks that share a core with this rank. The first rank of a pair reports for both."""
    # Unbound ranks may share any core by design. This is only a problem if they are too many for their CPUs.
    if not rank_plan.pin and compute * len(masks) <= len(set().union(*masks)):
        return []
    shared = [pair for pair in overlaps(masks, cores=cores) if pair[0] == rank_plan.rank]
    text = "ranks {} and {} of this node share the core(s) of CPU(s) {}"
    return [BindingMismatch("shared with a rank", text.format(*ranks, compact_cpus(cpus))) for *ranks, cpus in shared]


def _names(threads: Sequence[ThreadAffinity]) -> str:
    return ", ".join(f"{thread.name} {thread.thread}" for thread in threads[:3]) + ", ..." * (len(threads) > 3)


def _threads(folder: Path, online: Collection[int]) -> list[ThreadAffinity]:
    affinities = []
    for task in sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name)):
        stat = read_text(task / "stat")
        if stat is None:
            continue  # the thread has ended since the folder was read
        name, allowed = stat.partition("(")[2].rpartition(")")[0], mask_of(task / "status", online=online)
        affinities.append(ThreadAffinity(thread=int(task.name), name=name, allowed_cpus=allowed))
    return affinities
