"""Actual placement compared with the plan: masks, threads, ranks that share a core."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dithc.core.logging import UserError
from dithc.engine.comm.launch.launch_command import find_mpiexec
from dithc.engine.hardware import discover_machine, plan_cores
from dithc.engine.hardware.affinity import apply, overlaps, verify

LIMIT_SECONDS = 600


@pytest.fixture
def rank_plan(two_sockets):
    """Return rank 1 of 4 on an emulated machine: CPUs 20-39 and 100-119."""
    return plan_cores(discover_machine(two_sockets.root), ranks_per_node=4).ranks[1]


@pytest.fixture
def two_cpus(restored_masks):
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    for thread in os.listdir("/proc/self/task"):  # including threads of a team that an earlier test pinned
        os.sched_setaffinity(int(thread), cpus)
    return cpus


def kinds(differences):
    return [difference.kind for difference in differences]


def test_correctly_placed_rank_has_no_differences(two_sockets, rank_plan, dithc_log):
    two_sockets.process(allowed="20-39,100-119")
    two_sockets.task(100, name="python", allowed="20-39,100-119")
    two_sockets.task(101, name="worker (a) 1", allowed="22")
    with dithc_log.at_level("INFO"):
        differences = verify(rank_plan, root=two_sockets.root)
    assert differences == []
    assert "verified, 2 thread(s) on CPUs 20-39,100-119" in dithc_log.text


def test_mask_differing_from_plan_is_a_warning(two_sockets, rank_plan, dithc_log):
    two_sockets.process(allowed="20-25")
    differences = verify(rank_plan, root=two_sockets.root)
    assert kinds(differences) == ["process mask", "too few CPUs"]
    assert "CPUs 20-39,100-119 were requested, the kernel allows 20-25" in dithc_log.text


def test_offline_cpus_in_mask_are_ignored(flat_machine):
    tree = flat_machine(num_cores=4, allowed="0-127")
    tree.task(1, name="python", allowed="0-127")
    (only,) = plan_cores(discover_machine(tree.root), ranks_per_node=1).ranks
    assert kinds(verify(only, root=tree.root)) == []


def test_threads_allowed_outside_the_rank_are_reported_with_cpus(two_sockets, rank_plan, dithc_log):
    two_sockets.process(allowed="20-39,100-119")
    for thread in range(5):
        two_sockets.task(100 + thread, name="pool", allowed="0-159")
    differences = verify(rank_plan, root=two_sockets.root)
    assert kinds(differences) == ["thread mask"]
    assert "5 thread(s) (pool 100, pool 101, pool 102, ...) may run on CPUs 0-19,40-99,120-159" in dithc_log.text


def test_unpinned_rank_is_verified_against_the_process_mask_only(two_sockets, rank_plan):
    free = replace(rank_plan, rank=0, pin=False)
    two_sockets.process(allowed="0-9")
    two_sockets.task(1, name="python", allowed="0-9")

    def found(num_threads, ranks):
        return kinds(verify(free, num_threads=num_threads, gather=lambda mask: [mask] * ranks, root=two_sockets.root))

    assert (found(10, 1), found(11, 1)) == ([], ["too few CPUs"])
    assert (found(5, 2), found(6, 2)) == ([], ["shared with a rank"])
    for thread in (7, 8):
        two_sockets.task(thread, name="pool", allowed="2")
    assert found(5, 1) == ["threads on one CPU"]


def test_missing_kernel_data_is_logged_without_differences(tmp_path, rank_plan, dithc_log):
    differences = verify(rank_plan, root=tmp_path / "empty", gather=lambda mask: [mask, mask])
    assert "cannot be verified" in dithc_log.text
    assert differences == []


def test_ranks_sharing_a_core_are_reported_once_by_the_first_rank(two_sockets, rank_plan, dithc_log):
    cores = discover_machine(two_sockets.root).cores
    two_sockets.process(allowed="20-39,100-119")
    others = [(100,), rank_plan.cpus, (100, 101), (50,)]

    def gather(mine):
        assert mine == rank_plan.cpus
        return others

    differences = verify(rank_plan, gather=gather, cores=cores, root=two_sockets.root)
    # Rank 0 also shares core 20 with this rank, and reports it itself.
    assert kinds(differences) == ["shared with a rank"]
    assert "ranks 1 and 2 of this node share the core(s) of CPU(s) 20-21,100-101" in dithc_log.text


def test_hardware_threads_of_a_core_overlap_only_if_cores_are_given(two_sockets):
    cores = discover_machine(two_sockets.root).cores
    assert overlaps([(0,), (80,)]) == ()
    assert overlaps([(0,), (80,)], cores=cores) == ((0, 1, (0,)),)
    assert overlaps([(500,), (500,)], cores=cores) == ((0, 1, (500,)),)
    assert overlaps([]) == overlaps([(1,)]) == ()


@given(st.lists(st.frozensets(st.integers(0, 12), max_size=6), max_size=5))
def test_overlaps_are_the_common_cpus_of_each_pair(masks):
    expected = [(a, b, tuple(sorted(masks[a] & masks[b]))) for a, b in combinations(range(len(masks)), 2)]
    assert overlaps(masks) == tuple(pair for pair in expected if pair[2])


def test_applied_plan_is_verified_on_this_machine(two_cpus):
    (planned,) = plan_cores(discover_machine(described=False), ranks_per_node=1).ranks
    one = replace(planned, cpus=two_cpus[:1], num_threads=1, pin=True)
    assert kinds(verify(one)) == ["process mask", "thread mask"]
    apply(one)
    differences = verify(one)
    assert differences == []


PROGRAM = """
import os
from dithc.cli.distributed import ranks
from dithc.config import load
if {confine}:
    os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
with ranks(load({{}}), expected=2):
    pass
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("confine", [False, True])
def test_two_ranks_confined_to_one_cpu_are_reported_once(two_cpus, confine):
    try:
        mpiexec = find_mpiexec().path
    except UserError as error:
        pytest.skip(str(error))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("DITHC_", "OMP_"))}
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-c", PROGRAM.format(confine=confine)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        stdin=subprocess.DEVNULL,
        env=clean,
    )
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    assert output.count("ranks 0 and 1 of this node share") == int(confine), output
