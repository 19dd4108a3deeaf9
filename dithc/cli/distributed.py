"""Start of commands that run on several ranks, or that need exclusive access to a folder."""

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.config import ExperimentConfig
from dithc.core.logging import get_logger
from dithc.core.processes import HELD as HELD

if TYPE_CHECKING:
    from dithc.engine.comm import Group

log = get_logger("dithc.cores")


def add_ranks_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, metavar="N", help="required ranks (started by `dithc launch`, or 1)")


@contextmanager
def leased(group: "Group", folder: Path) -> Iterator[bool]:
    """Acquire the lease of a folder on rank 0. Yield True on all ranks, or False if another process holds it."""
    from dithc.core.artifacts import Lease

    with ExitStack() as stack:
        is_held = False
        if group.rank == 0:
            try:
                stack.enter_context(Lease.for_folder(folder))
            except Lease.Held as error:
                log.error(str(error))
                is_held = True
        yield not group.any(is_held)


def ranks(
    experiment: ExperimentConfig, *, expected: int | None, timeout_seconds: float | None = None
) -> AbstractContextManager["Group"]:
    """Start the ranks with the settings of section `machine`; UserError unless the expected number was started."""
    from dithc.engine import comm

    machine = experiment.machine
    config = comm.CommConfig(
        collectives=machine.collectives,
        reduce_dtype=machine.reduce_dtype,
        param_gather_dtype=machine.param_gather_dtype,
    )
    cpus = machine.cpus_per_rank
    return comm.init_distributed(expected, config=config, cpus_per_rank=cpus, timeout_seconds=timeout_seconds)
