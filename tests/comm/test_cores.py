"""Tests of compute threads: their number follows the cores of the rank."""

from types import SimpleNamespace

import pytest

from dithc.comm.cores import _threads
from dithc.hardware import RankPlan
from dithc.hardware.machine import Core

FOUR_CORES_OF_TWO = SimpleNamespace(
    cores=[Core(index=i, cpus=(i, i + 4), cluster=0, die=0, socket=0, node=0) for i in range(4)]
)


@pytest.mark.parametrize(
    ("asked", "launched", "threads"),
    [
        pytest.param(4, True, 2, id="all CPUs that a scheduler gave"),
        pytest.param(2, True, 2, id="as many as cores"),
        pytest.param(1, True, 1, id="fewer"),
        pytest.param(6, True, 6, id="more than CPUs"),
        pytest.param(4, False, 4, id="by hand"),
    ],
)
def test_threads_are_as_many_as_cores_where_a_scheduler_counts_their_hardware_threads(
    asked: int, launched: bool, threads: int
) -> None:
    mine = RankPlan(rank=0, cores=(0, 1), cpus=(0, 4, 1, 5), compute=(0, 1), reserved=(), num_threads=2, pin=True)
    assert _threads(asked, mine, FOUR_CORES_OF_TWO, launched=launched) == threads  # type: ignore[arg-type]
