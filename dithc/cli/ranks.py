"""The start of a verb that runs on several ranks, and of one that alone may work on a folder."""

import argparse
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.config import Experiment
from dithc.log import logger

if TYPE_CHECKING:
    from dithc.comm import Group

HELD = 76  # a status: another process makes the same
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


def ranks(
    experiment: Experiment, *, expected: int | None, timeout_seconds: float | None = None
) -> AbstractContextManager["Group"]:
    """`dithc.comm.ranks` as section `machine` of an experiment has it.

    Args:
        experiment: whose `machine` says how many cores a rank has, and how ranks exchange.
        expected: number of ranks there must be; None takes what was announced.
        timeout_seconds: after which a rank that waits for another gives up; None for the default of `connect`.

    Raises:
        UserError: another number of ranks was started than expected.
    """
    from dithc import comm

    machine = experiment.machine
    for variable, value in (
        ("DITHC_MPI_MODE", machine.collectives),
        ("DITHC_MPI_WIRE", machine.wire),
        ("DITHC_WEIGHTS_WIRE", machine.weights_wire),
    ):
        os.environ.setdefault(variable, value)
    return comm.ranks(expected, cpus_per_rank=machine.cpus_per_rank, timeout_seconds=timeout_seconds)
