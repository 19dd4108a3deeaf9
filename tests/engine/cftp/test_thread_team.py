"""Tests of `ThreadTeam`: its threads are where it describes them, have barriers, and sleep when idle."""

import os
import subprocess
import sys
import threading

import pytest

from dithc.engine import cftp as module
from dithc.engine import native
from dithc.engine.cftp import ThreadTeam
from tests.engine.native.context_threads import run_on_threads

needs_library = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
needs_two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


def script(program: str, *, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout, env=environment
    )


@needs_library
def test_threads_have_the_placement_of_the_team():
    team, masks, identities = ThreadTeam.of(), {}, set()
    run_on_threads(lambda thread, _: masks.update({thread: os.sched_getaffinity(0)}))
    run_on_threads(lambda *_: identities.add(threading.get_native_id()))
    assert len(masks) == len(identities) == team.num_threads
    assert [thread for cluster in team.clusters for thread in cluster] == list(range(team.num_threads))
    if team.cpus:
        assert {thread: masks[thread] for thread in masks if thread} == {
            thread: {cpu} for thread, cpu in enumerate(team.cpus) if thread
        }
    assert team.describe().startswith(f"team: {team.num_threads} thread(s) in {len(team.clusters)} cluster(s)")


@needs_library
def test_barrier_times_are_positive_for_teams_and_zero_for_one_thread():
    times = ThreadTeam.of(num_threads=2).barrier_times(count=100, runs=3)
    assert len(times) == 3
    assert min(times) > 0
    assert ThreadTeam.of(num_threads=1).barrier_seconds() == 0.0
    with pytest.raises(ValueError, match="hc_barrier_ceiling"):
        ThreadTeam.of(num_threads=2).barrier_times(count=-1)


def test_team_without_library_contains_only_the_caller(monkeypatch):
    monkeypatch.setattr(module.native, "library", lambda: None)
    team = ThreadTeam.of(num_threads=8)
    assert (team.num_threads, team.barrier_seconds()) == (1, 0.0)
    assert team.describe().startswith("team: the caller alone")


def test_team_description_formats_cpus_and_nodes_as_ranges():
    team = ThreadTeam(clusters=((0, 1), (2, 3)), cpus=(0, 1, 4, 7), nodes=(0, 1))
    placement = "pinned to CPUs 0-1,4,7; memory bound to nodes 0-1"
    assert team.describe() == f"team: 4 thread(s) in 2 cluster(s) (2 + 2), {placement}"


IDLE = """
import time
from dithc.engine.hardware import discover_machine
from dithc.engine import native
from dithc.engine.native import thread_layout
def seconds_of_cpu(spin_nanoseconds, enough=0.0):
    # What the process uses in 0.4 s, or in as much longer as it takes to use enough.
    layout = thread_layout.planned_layout(discover_machine(), 2)
    made = thread_layout.new_context(discover_machine(), layout, isa="ref", spin_nanoseconds=spin_nanoseconds)
    native.library().hc_barrier_ceiling(made, 1000)
    time.sleep(0.02)
    before, end = time.process_time(), time.monotonic() + 60
    time.sleep(0.4)
    while time.process_time() - before < enough and time.monotonic() < end:
        time.sleep(0.05)
    used = time.process_time() - before
    native.library().hc_context_destroy(made)
    return used
idle = [seconds_of_cpu(thread_layout.SPIN_NANOSECONDS) for _ in range(3)]
print(min(idle), seconds_of_cpu(10**11, enough=0.09))
"""


@needs_library
@needs_two_cpus
@pytest.mark.slow
def test_idle_team_uses_no_cpu_time():
    # The best of three, because on a loaded machine other threads of the interpreter may count too.
    idle, spinning = map(float, script(IDLE).stdout.split())
    assert idle < 0.04
    assert spinning > 0.08  # the expected time without sleep
