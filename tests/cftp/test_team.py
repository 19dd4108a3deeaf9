"""Tests of `Team`: it runs a function on each thread, completes despite failures, and sleeps when idle."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from dithc import hcops, native
from dithc.cftp import Team
from dithc.cftp import team as module

needs_library = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load().reason}")
needs_two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


def script(text: str, *, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=timeout, env=environment
    )


@needs_library
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_thread_is_called_once_on_a_thread_of_its_own(threads):
    called, lock = [], threading.Lock()

    def job(thread: int, of: int) -> None:
        with lock:
            called.append((thread, of, threading.get_native_id()))

    team = Team.of(num_threads=threads)
    for _ in range(3):
        team.run(job)
    assert sorted(thread for thread, _, _ in called) == sorted([*range(threads)] * 3)
    assert {of for _, of, _ in called} == {threads}
    assert len({(thread, identity) for thread, _, identity in called}) == threads
    assert {identity for thread, _, identity in called if thread == 0} == {threading.get_native_id()}


@needs_library
def test_threads_are_where_the_team_says():
    team, masks = Team.of(), {}
    team.run(lambda thread, _: masks.update({thread: os.sched_getaffinity(0)}))
    assert [thread for cluster in team.clusters for thread in cluster] == list(range(team.num_threads))
    if team.cpus:
        assert {thread: masks[thread] for thread in masks if thread} == {
            thread: {cpu} for thread, cpu in enumerate(team.cpus) if thread
        }
    assert team.describe().startswith(f"team: {team.num_threads} thread(s) in {len(team.clusters)} cluster(s)")


@needs_library
def test_what_a_worker_raises_reaches_the_caller_with_its_number_and_the_others_finish():
    finished = []

    def job(thread: int, _: int) -> None:
        if thread in (1, 2):
            raise LookupError(f"nothing for {thread}")
        finished.append(thread)

    team = Team.of(num_threads=4)
    with pytest.raises(LookupError, match="nothing for 1") as caught:
        team.run(job)
    assert caught.value.__notes__ == ["raised on thread 1 of a team of 4", "threads [2] failed too"]
    assert sorted(finished) == [0, 3]
    finished.clear()
    team.run(lambda thread, _: finished.append(thread))
    assert sorted(finished) == [0, 1, 2, 3]


@needs_library
@pytest.mark.parametrize("thread_that_stops", [0, 1])
def test_a_stop_from_the_keyboard_is_raised_after_the_others_finished(thread_that_stops):
    finished = []

    def job(thread: int, _: int) -> None:
        if thread == thread_that_stops:
            raise KeyboardInterrupt
        finished.append(thread)

    with pytest.raises(KeyboardInterrupt):
        Team.of(num_threads=3).run(job)
    assert len(finished) == 2


@needs_library
def test_operators_that_a_run_calls_do_not_wait_for_the_team(use_backend):
    use_backend("c")
    threads = torch.get_num_threads()
    x, w = torch.randn(300, 200), torch.randn(100, 200)
    right, results = hcops.linear(x, w), {}
    team = Team.of(num_threads=threads)
    team.run(lambda thread, _: results.update({thread: hcops.linear(x, w)}))
    assert len(results) == threads
    assert all(torch.equal(result, right) for result in results.values())


@needs_library
def test_teams_may_call_each_other():
    seen = []
    outer, inner = Team.of(num_threads=2), Team.of(num_threads=3)
    outer.run(lambda thread, _: inner.run(lambda inner_thread, of: seen.append((thread, inner_thread, of))))
    assert sorted(seen) == [(thread, inner_thread, 3) for thread in range(2) for inner_thread in range(3)]


@needs_library
def test_a_barrier_has_a_price_and_a_team_of_one_has_none():
    times = Team.of(num_threads=2).barrier_times(count=100, runs=3)
    assert len(times) == 3
    assert min(times) > 0
    assert Team.of(num_threads=1).barrier_seconds() == 0.0
    with pytest.raises(ValueError, match="hc_barrier_ceiling"):
        Team.of(num_threads=2).barrier_times(count=-1)


def test_without_the_library_the_caller_is_the_team(monkeypatch):
    monkeypatch.setattr(module.native, "library", lambda: None)
    team, called = Team.of(num_threads=8), []
    team.run(lambda *numbers: called.append(numbers))
    assert (called, team.num_threads, team.barrier_seconds()) == ([(0, 1)], 1, 0.0)
    assert team.describe().startswith("team: the caller alone")


def test_numbers_are_written_as_ranges():
    team = Team(clusters=((0, 1), (2, 3)), cpus=(0, 1, 4, 7), nodes=(0, 1))
    assert (
        team.describe()
        == "team: 4 thread(s) in 2 cluster(s) (2 + 2), pinned to CPUs 0-1,4,7; memory bound to nodes 0-1"
    )


IDLE = """
import time
from dithc.hardware import discover
from dithc import native
from dithc.native import contexts
def seconds_of_cpu(spin_nanoseconds, enough=0.0):
    # What the process uses in 0.4 s, or in as much longer as it takes to use enough.
    layout = contexts.planned_layout(discover(), 2)
    made = contexts.new_context(discover(), layout, isa="ref", spin_nanoseconds=spin_nanoseconds)
    native.library().hc_barrier_ceiling(made, 1000)
    time.sleep(0.02)
    before, end = time.process_time(), time.monotonic() + 60
    time.sleep(0.4)
    while time.process_time() - before < enough and time.monotonic() < end:
        time.sleep(0.05)
    used = time.process_time() - before
    native.library().hc_context_destroy(made)
    return used
idle = [seconds_of_cpu(contexts.SPIN_NANOSECONDS) for _ in range(3)]
print(min(idle), seconds_of_cpu(10**11, enough=0.09))
"""


@needs_library
@needs_two_cpus
@pytest.mark.slow
def test_an_idle_team_uses_no_cpu():
    # The best of three, because on a loaded machine other threads of the interpreter may count too.
    idle, spinning = map(float, script(IDLE).stdout.split())
    assert idle < 0.04
    assert spinning > 0.08  # the expected time without sleep


@needs_library
@pytest.mark.slow
def test_a_child_forked_from_an_idle_team_is_a_team_of_one():
    done = script("""
import os
from dithc.cftp import Team
team = Team.of(num_threads=2)
team.run(lambda thread, threads: None)
child = os.fork()
if child == 0:
    called = []
    team.run(lambda thread, threads: called.append((thread, threads)))
    os._exit(0 if called == [(0, 1)] else 1)
print(os.waitpid(child, 0)[1])
team.run(lambda thread, threads: None)
""")
    assert done.stdout.strip() == "0", done.stderr


@needs_library
@pytest.mark.slow
def test_the_process_ends_while_a_worker_is_busy():
    done = script(
        """
import threading, time
from dithc.cftp import Team
team = Team.of(num_threads=3)
busy = threading.Event()
def job(thread, threads):
    busy.set()
    while True:
        sum(range(1000))
threading.Thread(target=lambda: team.run(job), daemon=True).start()
busy.wait()
print("leaving", flush=True)
""",
        timeout=600,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "leaving"), done.stderr
