"""The start of work on several ranks: connect them, place each on its cores, set its threads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from dithc import openmp
from dithc.comm.environment import EXPECTED_RANKS_VARIABLE
from dithc.comm.group import Group, connect
from dithc.hardware import Machine, RankPlan, discover, placement, plan
from dithc.log import logger, problem

THREADS_VARIABLE = "OMP_NUM_THREADS"
MOST_THREADS = 4096  # of a context of the kernels
log = logger("dithc.cores")


@contextmanager
def ranks(
    expected: int | None = None, *, cpus_per_rank: int | None = None, timeout_seconds: float | None = None
) -> Iterator[Group]:
    """The connected ranks, this one bound to its share of the node's cores and with as many compute threads.

    `dithc launch` sets the threads of a rank (OMP_NUM_THREADS), which then are also the cores it was given; started by hand,
    a rank has `cpus_per_rank`, or its share of all. Where the plan reserves a core for communication, the communication threads
    run there and all others elsewhere; cores that it reserves are left free of compute threads, unless OMP_NUM_THREADS was set by
    hand. A process that no launcher started is one rank.

        with comm.ranks() as group:  # python my.py, or: dithc launch --ranks 2 -- python my.py
            print(f"rank {group.rank} of {group.size}")

    Args:
        expected: number of ranks there must be; None takes what was announced.
        cpus_per_rank: cores of a rank, where no launcher says it.
        timeout_seconds: after which a rank that waits for another gives up; None for the default of `connect`.

    Raises:
        UserError: another number of ranks was started than expected.
    """
    import torch

    openmp.report()
    with connect(expected, timeout_seconds=timeout_seconds) as group:
        if group.is_nested:
            yield group
            return
        asked = _asked_threads()
        launched = asked if EXPECTED_RANKS_VARIABLE in os.environ else None
        machine = discover()
        masks = _masks_of_node(group, machine.limits.allowed_cpus)
        apart = sum(map(len, masks)) == len(set[int]().union(*masks))
        given = launched or cpus_per_rank
        cores = plan(machine, ranks_per_node=group.local_size, cpus_per_rank=given, own_mask=apart)
        for reason in cores.reasons:
            log.info(reason)
        mine, communication = _without_communication(cores.ranks[group.local_rank], machine)
        before = os.sched_getaffinity(0)
        threads = placement.apply(mine)
        if asked is not None and not (launched and mine.reserved):
            threads = _threads(asked, mine, machine, launched=launched is not None)
        torch.set_num_threads(threads)
        openmp.unbind_team()
        if communication:
            group.communicate_on(communication[0])
        elif group.size > 1:
            log.info("no core of its own for the communication threads: they run on any of the rank")
        check = partial(placement.verify, mine, num_threads=threads, cores=machine.cores, communication=communication)
        check(gather=partial(_masks_of_node, group))
        try:
            yield group
            # By now the threads of the work exist, and something that was loaded may have bound them elsewhere.
            check()
        finally:
            placement.rebind(os.sched_getaffinity(0), before)


def _asked_threads() -> int | None:
    """What OMP_NUM_THREADS says; None where it is not set, or is a list for nested parallelism, which there is none of here.

    Raises:
        UserError: it is no number of threads that a machine has.
    """
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text or "," in text:
        return None
    asked = int(text) if text.isascii() and text.isdigit() and len(text) < len(str(MOST_THREADS)) + 1 else 0
    if not 1 <= asked <= MOST_THREADS:
        raise problem(
            f"environment variable {THREADS_VARIABLE}",
            got=repr(text[:40]),
            expected=f"a number of threads from 1 to {MOST_THREADS}",
            fix=f"set it to the cores of a rank, or unset it (`unset {THREADS_VARIABLE}`): dithc counts them itself",
        )
    return asked


def _threads(asked: int, mine: RankPlan, machine: Machine, *, launched: bool) -> int:
    """Compute threads of a rank for which OMP_NUM_THREADS says how many: as many, or one on each of its cores, where the number
    is that of a scheduler's CPUs, of which a core is several (simultaneous multithreading)."""
    cores = sum(1 for core in machine.cores if set(core.cpus) & set(mine.cpus))
    if launched and cores < asked <= len(mine.cpus):
        log.info(f"{cores} compute thread(s) a rank: its {asked} CPU(s) are {cores} core(s)")
        return cores
    log.info(f"{asked} compute thread(s) a rank, as {THREADS_VARIABLE} says")
    return asked


def _without_communication(mine: RankPlan, machine: Machine) -> tuple[RankPlan, tuple[int, ...]]:
    """The plan of a rank without the core of its communication threads, and the CPUs of that core; none where none is reserved.

    Of several clusters each may have such a core; the first is used, the others stay free.
    """
    reserved = next((core for purpose, core in mine.reserved if purpose == "communication"), None)
    if reserved is None or not mine.pin:
        return mine, ()
    taken = set(machine.cores[reserved].cpus)
    communication = tuple(cpu for cpu in mine.cpus if cpu in taken)
    return replace(mine, cpus=tuple(cpu for cpu in mine.cpus if cpu not in taken)), communication


def _masks_of_node(group: Group, cpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The CPUs of every rank of this rank's node, in the order of their local ranks."""
    everyone = group.gather_objects((group.node, group.local_rank, cpus))
    return [mask for _, mask in sorted((local, mask) for node, local, mask in everyone if node == group.node)]
