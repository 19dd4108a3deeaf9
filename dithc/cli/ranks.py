"""The start of a verb that runs on several ranks: connect them, place each on its cores, set its threads."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from dithc.config import Experiment
from dithc.hardware import apply, discover, plan, verify
from dithc.log import logger

if TYPE_CHECKING:
    from dithc.comm import Group

THREADS_VARIABLE = "OMP_NUM_THREADS"
log = logger("dithc.cores")


def add_ranks_argument(parser: argparse.ArgumentParser) -> None:
    """Declares `--ranks`."""
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="ranks there must be (what `dithc launch` started, or 1); else it aborts"
    )


@contextmanager
def ranks(experiment: Experiment, *, expected: int | None, timeout_seconds: float | None = None) -> Iterator["Group"]:
    """The connected ranks, this one bound to its share of the node's cores and with as many compute threads.

    `dithc launch` sets the threads of a rank (OMP_NUM_THREADS), which then are also the cores it was given; started by hand,
    a rank has `machine.cpus_per_rank` of the configuration, or its share of all. The cores that the plan reserves for the system
    and the communication are left free only where the plan decides the threads, not where OMP_NUM_THREADS does.

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
    ):
        os.environ.setdefault(variable, value)
    with connect(expected, timeout_seconds=timeout_seconds) as group:
        launched = os.environ.get(THREADS_VARIABLE, "") if "DITHC_EXPECTED_RANKS" in os.environ else ""
        given = int(launched) if launched.isdigit() else experiment.machine.cpus_per_rank
        machine = discover()
        cores = plan(machine, ranks_per_node=group.local_size, cpus_per_rank=given)
        for reason in cores.reasons:
            log.info(reason)
        mine = cores.ranks[group.local_rank]
        threads = apply(mine)
        if os.environ.get(THREADS_VARIABLE, "").isdigit():
            threads = int(os.environ[THREADS_VARIABLE])
            log.info(f"{threads} compute thread(s) a rank, as {THREADS_VARIABLE} says")
        torch.set_num_threads(threads)
        verify(mine, num_threads=threads, gather=partial(_masks_of_node, group), cores=machine.cores)
        yield group
        # By now the threads of the work exist, and something that was loaded may have bound them elsewhere.
        verify(mine, num_threads=threads)


def _masks_of_node(group: "Group", cpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The CPUs of every rank of this rank's node, in the order of their local ranks."""
    everyone = group.gather_objects((group.node, group.local_rank, cpus))
    return [mask for _, mask in sorted((local, mask) for node, local, mask in everyone if node == group.node)]
