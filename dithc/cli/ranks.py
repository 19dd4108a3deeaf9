"""The start of a verb that runs on several ranks: connect them, place each on its cores, set its threads."""

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.config import Experiment
from dithc.hardware import Machine, RankPlan, apply, discover, plan, verify
from dithc.log import logger, problem

if TYPE_CHECKING:
    from dithc.comm import Group

HELD = 76  # a status: another process makes the same
THREADS_VARIABLE = "OMP_NUM_THREADS"
MOST_THREADS = 4096  # of a context of the kernels
log = logger("dithc.cores")


def add_ranks_argument(parser: argparse.ArgumentParser) -> None:
    """Declares `--ranks`."""
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="ranks there must be (what `dithc launch` started, or 1); else it aborts"
    )


@contextmanager
def leased(group: "Group", folder: Path) -> Iterator[bool]:
    """Whether no other process works on a folder, and none will while this lasts; the first rank asks, all get its answer."""
    from dithc.runs import Lease

    with ExitStack() as stack:
        is_held = False
        if group.rank == 0:
            try:
                stack.enter_context(Lease.beside(folder))
            except Lease.Held as error:
                log.error(str(error))
                is_held = True
        yield not group.any(is_held)


@contextmanager
def ranks(experiment: Experiment, *, expected: int | None, timeout_seconds: float | None = None) -> Iterator["Group"]:
    """The connected ranks, this one bound to its share of the node's cores and with as many compute threads.

    `dithc launch` sets the threads of a rank (OMP_NUM_THREADS), which then are also the cores it was given; started by hand,
    a rank has `machine.cpus_per_rank` of the configuration, or its share of all. Where the plan reserves a core for
    communication, the communication threads run there and all others elsewhere; cores that it reserves are left free of compute
    threads, unless OMP_NUM_THREADS was set by hand.

    Args:
        experiment: whose `machine` says how many cores a rank has.
        expected: number of ranks there must be; None takes what was announced.
        timeout_seconds: after which a rank that waits for another gives up; None for the default of `connect`.

    Raises:
        UserError: another number of ranks was started than expected.
    """
    import torch

    from dithc.comm import connect

    for variable, value in (
        ("DITHC_MPI_MODE", experiment.machine.collectives),
        ("DITHC_MPI_WIRE", experiment.machine.wire),
        ("DITHC_WEIGHTS_WIRE", experiment.machine.weights_wire),
    ):
        os.environ.setdefault(variable, value)
    with connect(expected, timeout_seconds=timeout_seconds) as group:
        asked = _asked_threads()
        launched = asked if "DITHC_EXPECTED_RANKS" in os.environ else None
        given = launched or experiment.machine.cpus_per_rank
        machine = discover()
        masks = _masks_of_node(group, machine.limits.allowed_cpus)
        apart = sum(map(len, masks)) == len(set[int]().union(*masks))
        cores = plan(machine, ranks_per_node=group.local_size, cpus_per_rank=given, own_mask=apart)
        for reason in cores.reasons:
            log.info(reason)
        mine, communication = _without_communication(cores.ranks[group.local_rank], machine)
        threads = apply(mine)
        if communication:
            group.communicate_on(communication[0])
        elif group.size > 1:
            log.info("no core of its own for the communication threads: they run on any of the rank")
        if asked is not None and not (launched and mine.reserved):
            threads = _threads(asked, mine, machine, launched=launched is not None)
        torch.set_num_threads(threads)
        check = partial(verify, mine, num_threads=threads, cores=machine.cores, communication=communication)
        check(gather=partial(_masks_of_node, group))
        yield group
        # By now the threads of the work exist, and something that was loaded may have bound them elsewhere.
        check()


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
            remedy=f"set it to the cores of a rank, or unset it (`unset {THREADS_VARIABLE}`): dithc counts them itself",
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


def _masks_of_node(group: "Group", cpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The CPUs of every rank of this rank's node, in the order of their local ranks."""
    everyone = group.gather_objects((group.node, group.local_rank, cpus))
    return [mask for _, mask in sorted((local, mask) for node, local, mask in everyone if node == group.node)]
