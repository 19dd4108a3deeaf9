"""Set-up of a process on several ranks: connection, core binding, thread counts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from dithc.core import openmp
from dithc.core.logging import get_logger, user_error
from dithc.engine.comm.environment import EXPECTED_RANKS_VARIABLE
from dithc.engine.comm.group import Group, connect_ranks
from dithc.engine.comm.settings import CommConfig
from dithc.engine.hardware import Machine, RankPlan, affinity, discover_machine, plan_cores

THREADS_VARIABLE = "OMP_NUM_THREADS"
MOST_THREADS = 4096  # limit of a kernel context
log = get_logger("dithc.cores")


@contextmanager
def init_distributed(
    expected: int | None = None,
    *,
    config: CommConfig | None = None,
    cpus_per_rank: int | None = None,
    timeout_seconds: float | None = None,
) -> Iterator[Group]:
    """Connect the ranks, bind this rank to its cores and set its threads.

    `dithc launch` sets the threads per rank (OMP_NUM_THREADS), which is then also the number of cores of the rank. A
    rank that was started by hand uses `cpus_per_rank`, or its share of all cores. If the plan reserves a core for
    communication, only the communication threads run on it. Reserved cores have no compute threads unless the user set
    OMP_NUM_THREADS. A process without a launcher is a single rank.

        with comm.init_distributed() as group:  # python my.py, or: dithc launch --ranks 2 -- python my.py
            print(f"rank {group.rank} of {group.size}")

    Args:
        expected: required number of ranks; None accepts the announced number.
        config: settings of the exchange between ranks; None for the active settings.
        cpus_per_rank: cores per rank if no launcher specifies them.
        timeout_seconds: time after which a rank stops waiting for another; None for the default of `connect_ranks`.

    Raises:
        UserError: the number of started ranks differs from the expected number.
    """
    import torch

    openmp.report()
    with (config or CommConfig.current()).active(), connect_ranks(expected, timeout_seconds=timeout_seconds) as group:
        if group.is_nested:
            yield group
            return
        asked = _asked_threads()
        launched = asked if EXPECTED_RANKS_VARIABLE in os.environ else None
        machine = discover_machine()
        masks = _masks_of_node(group, machine.limits.allowed_cpus)
        apart = sum(map(len, masks)) == len(set[int]().union(*masks))
        given = launched or cpus_per_rank
        cores = plan_cores(machine, ranks_per_node=group.local_size, cpus_per_rank=given, own_mask=apart)
        for reason in cores.reasons:
            log.info(reason)
        mine, communication = _without_communication(cores.ranks[group.local_rank], machine)
        before = os.sched_getaffinity(0)
        threads = affinity.apply(mine)
        if asked is not None and not (launched and mine.reserved):
            threads = _threads(asked, mine, machine, launched=launched is not None)
        torch.set_num_threads(threads)
        openmp.unbind_team()
        if communication:
            group.communicate_on(communication[0])
        elif group.size > 1:
            log.info("no core is reserved for the communication threads: they run on any core of the rank")
        check = partial(affinity.verify, mine, num_threads=threads, cores=machine.cores, communication=communication)
        check(gather=partial(_masks_of_node, group))
        try:
            yield group
            # All threads exist by now, and a library that was loaded since may have changed their binding.
            check()
        finally:
            affinity.rebind(os.sched_getaffinity(0), before)


def _asked_threads() -> int | None:
    """Return OMP_NUM_THREADS; None if it is unset or a list for nested parallelism, which dithc does not use."""
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text or "," in text:
        return None
    asked = int(text) if text.isascii() and text.isdigit() and len(text) < len(str(MOST_THREADS)) + 1 else 0
    if not 1 <= asked <= MOST_THREADS:
        raise user_error(
            f"environment variable {THREADS_VARIABLE}",
            got=repr(text[:40]),
            expected=f"a number of threads from 1 to {MOST_THREADS}",
            fix=f"set it to the cores of a rank, or unset it (`unset {THREADS_VARIABLE}`): dithc counts them itself",
        )
    return asked


def _threads(asked: int, mine: RankPlan, machine: Machine, *, launched: bool) -> int:
    """Return the compute threads for which OMP_NUM_THREADS asks, but one per core if CPUs of a scheduler share cores."""
    cores = sum(1 for core in machine.cores if set(core.cpus) & set(mine.cpus))
    if launched and cores < asked <= len(mine.cpus):
        log.info(f"{cores} compute thread(s) per rank: its {asked} CPU(s) are {cores} core(s)")
        return cores
    log.info(f"{asked} compute thread(s) per rank, from {THREADS_VARIABLE}")
    return asked


def _without_communication(mine: RankPlan, machine: Machine) -> tuple[RankPlan, tuple[int, ...]]:
    """Return the plan without the core of the communication threads, and the CPUs of that core, or none.

    Each of several core clusters may reserve a core; the first is used and the others stay free.
    """
    reserved = next((core for purpose, core in mine.reserved if purpose == "communication"), None)
    if reserved is None or not mine.pin:
        return mine, ()
    taken = set(machine.cores[reserved].cpus)
    communication = tuple(cpu for cpu in mine.cpus if cpu in taken)
    return replace(mine, cpus=tuple(cpu for cpu in mine.cpus if cpu not in taken)), communication


def _masks_of_node(group: Group, cpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the CPUs of every rank of this node, in the order of local ranks."""
    everyone = group.gather_objects((group.node, group.local_rank, cpus))
    return [mask for _, mask in sorted((local, mask) for node, local, mask in everyone if node == group.node)]
