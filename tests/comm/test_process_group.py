"""The backend dithc-mpi: every collective on every type in every mode, stock DDP and DTensor on top, errors that arrive."""

import pytest

from tests.comm.test_group import run_program

pytestmark = pytest.mark.mpi
SCENES = (
    "reductions",
    "movements",
    "messages",
    "subgroups",
    "parallel_training",
    "reduced_gradients",
    "failures",
    "failing_backward",
)

EXACT = ("parallel_training", "reduced_gradients")  # compared with fp32 on one process


def done_lines(ranks: int) -> list[str]:
    return [f"rank {rank} of {ranks} is done" for rank in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "environment"),
    [
        (1, {}),
        (2, {"DITHC_MPI_MODE": "blocking"}),
        (2, {"DITHC_MPI_MODE": "iallreduce"}),
        (2, {}),
        (3, {}),
        (4, {"DITHC_TEST_NODES": "2"}),
        (4, {"DITHC_TEST_NODES": "2", "DITHC_MPI_WIRE": "bf16"}),
        (3, {"DITHC_TEST_NODES": "2"}),
    ],
    ids=["alone", "blocking", "iallreduce", "2", "3", "2-nodes", "2-nodes-bf16", "unequal-nodes"],
)
def test_collectives_and_what_stands_on_them(ranks, environment):
    scenes = [scene for scene in SCENES if "DITHC_MPI_WIRE" not in environment or scene not in EXACT]
    done = run_program("process_group_program.py", ranks, *scenes, **environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == done_lines(ranks)
    if environment.get("DITHC_TEST_NODES") == "2" and ranks == 3:
        assert "the nodes have different numbers of ranks" in done.stderr


def test_ranks_that_stay_away_are_an_error_in_time():
    done = run_program("process_group_program.py", 3, "absent")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == done_lines(3)


@pytest.mark.parametrize("environment", [{"DITHC_MPI_MODE": "fast"}, {"DITHC_MPI_WIRE": "int4"}])
def test_a_mode_that_does_not_exist_is_refused(environment):
    done = run_program("process_group_program.py", 2, "failures", **environment)
    assert done.returncode != 0
    assert "expected: " in done.stderr
