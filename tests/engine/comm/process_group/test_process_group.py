"""Tests of the backend dithc-mpi: every collective, type and mode; stock DDP and DTensor; error propagation."""

import json
import os
import random
import re
from pathlib import Path

import pytest

from dithc.engine.comm.process_group.islands import group_nodes
from tests.engine.comm.test_group import done_lines, run_line, run_program

pytestmark = pytest.mark.mpi
PROGRAM = "process_group/process_group_program.py"
SCENES = (
    *("reductions", "movements", "shards", "messages"),
    *("fully_sharded", "reduced_gradients", "failures", "failing_backward"),
)

EXACT = ("fully_sharded", "reduced_gradients")  # compared with fp32 on one process


@pytest.mark.sampled("collectives")
@pytest.mark.parametrize(
    ("ranks", "nodes", "settings"),
    [
        (1, 1, {}),
        (2, 1, {"collectives": "blocking"}),
        (2, 1, {"collectives": "iallreduce"}),
        (2, 1, {}),
        (4, 1, {}),
        (2, 2, {}),
        (4, 2, {}),
        (4, 2, {"reduce_dtype": "bf16"}),
        (3, 2, {}),
        (8, 4, {}),
    ],
    ids=[
        "alone",
        "blocking",
        "iallreduce",
        "2",
        "4",
        "nodes-of-one",
        "2-nodes",
        "2-nodes-bf16",
        "unequal-nodes",
        "islands",
    ],
)
def test_collectives_fsdp_and_reducer_are_correct_on_all_layouts(ranks, nodes, settings):
    scenes = [scene for scene in SCENES if not settings.get("reduce_dtype") or scene not in EXACT]
    if ranks == 8:
        scenes = ["shards", "reduced_gradients"]  # the others take minutes with eight ranks
    environment = {"DITHC_TEST_COMM": json.dumps(settings), "DITHC_TEST_NODES": str(nodes)}
    done = run_program(PROGRAM, ranks, *scenes, **environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == done_lines(ranks)
    assert ("the nodes have different numbers of ranks" in done.stderr) == (ranks == 3)
    assert ("2 islands of 2 nodes" in done.stderr) == (nodes == 4)


def test_islands_are_equal_groups_with_fast_links():
    rng = random.Random(0)

    def rates(island_of: list[int], ratio: float) -> list[list[float]]:
        return [[rng.uniform(0.8, 1.2) * (ratio if a == b else 1) for b in island_of] for a in island_of]

    assert group_nodes(rates([0, 1, 2, 0, 1, 2], 5)) == [[0, 3], [1, 4], [2, 5]]
    assert group_nodes(rates([0, 0, 0, 1, 1, 1], 5)) == [[0, 1, 2], [3, 4, 5]]
    one = [[0, 1, 2, 3, 4, 5]]
    assert group_nodes(rates([0] * 6, 5)) == one
    assert group_nodes(rates([0, 0, 0, 0, 1, 1], 5)) == one  # unequal sizes
    assert group_nodes(rates([0, 0, 0, 1, 1, 1], 2)) == one  # too small a difference
    assert group_nodes(rates([0, 1, 2, 3, 4, 5], 5)) == one  # no fast link
    slow_pair = rates([0] * 6, 5)
    slow_pair[2][4] = 0.1
    assert group_nodes(slow_pair) == one


def test_missing_rank_raises_a_timeout_error_with_rank_number():
    done = run_program(PROGRAM, 3, "absent")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == done_lines(3)
    assert re.search(r"rank 0 of 3: waiting for \d+ s for rank 2 \(process \d+\); gives up after 10 s", done.stderr)


def test_documented_code_initializes_a_process_group():
    program = (
        "import sys, torch, torch.distributed as dist, dithc.engine.comm.process_group\n"
        "dist.init_process_group('dithc-mpi')\n"
        "x = torch.ones(1); dist.all_reduce(x); sys.stdout.write(f'{int(x)}\\n'); dist.destroy_process_group()"
    )
    for ranks in (1, 2):
        done = run_line(ranks, "-c", program)
        assert (done.returncode, done.stdout.split()) == (0, [str(ranks)] * ranks), done.stderr
    # half of the env:// variables is an error, as without dithc
    done = run_line(1, "-c", program, MASTER_ADDR="127.0.0.1")
    assert done.returncode != 0
    assert "RANK expected, but not set" in done.stderr


def test_communication_threads_have_a_reserved_core():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    done = run_line(2, str(Path(__file__).with_name("core_plan_program.py")), DITHC_EXPECTED_RANKS="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["apart"] * 2
