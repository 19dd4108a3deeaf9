"""Operators finish with correct results with too many threads, fewer CPUs or Ctrl-C, and log the cause."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dithc.engine import native
from dithc.engine.hardware import discover_machine
from dithc.engine.native import contexts, thread_layout
from dithc.engine.native.signatures import Callback

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
CPUS = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")

# Products, attention and vector operators, forward and backward, as many short runs of the team, against float64.
WORK = """
import os, sys
threads, cpus = int(sys.argv[1]), [int(cpu) for cpu in sys.argv[2].split(",")]
os.sched_setaffinity(0, cpus)
import torch
torch.set_num_threads(threads)
from dithc.engine import hcops
generator = torch.Generator().manual_seed(0)
def draw(*shape):
    return torch.randn(*shape, generator=generator)
x, w, shift, scale = draw(4, 64, 96), 0.1 * draw(288, 96), draw(4, 96), draw(4, 96)
def loss(backend, x, w, shift, scale):
    with hcops.use(backend):
        y = hcops.vector.adaln(x, shift, scale)
        return hcops.attention(hcops.linear(y, w), 6).square().mean()
def gradients(backend, kind):
    given = [t.to(kind, copy=True).requires_grad_() for t in (x, w, shift, scale)]
    loss(backend, *given).backward()
    return [t.grad for t in given]
right = gradients("reference", torch.float64)
for turn in range(int(sys.argv[3])):
    if turn == 1 and len(sys.argv) > 4:
        os.sched_setaffinity(0, [int(sys.argv[4])])
    for ours, exact in zip(gradients("c", torch.float32), right):
        assert torch.allclose(ours.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max())), (ours - exact).abs().max()
print("right", flush=True)
sys.stdin.read()  # it keeps its team until it may end
"""


def start(threads: int, cpus: list[int], *settings: object, rounds: int = 30) -> "subprocess.Popen[str]":
    arguments = [str(threads), ",".join(map(str, cpus)), str(rounds), *map(str, settings)]
    return subprocess.Popen(
        [sys.executable, "-c", WORK, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", *, timeout: float = 600) -> str:
    """Check that the process succeeded; return its log."""
    try:
        out, log = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert (process.returncode, out.strip()) == (0, "right"), log
    return log


@needs_two_cpus
@pytest.mark.slow
def test_four_processes_with_two_threads_each_share_two_cores():
    processes = [start(2, CPUS[:2]) for _ in range(4)]
    assert [process.stdout.readline() for process in processes if process.stdout] == ["right\n"] * 4
    logs = [process.communicate(timeout=600)[1] for process in processes]
    # All four were alive together, so only one process can have found both CPUs unclaimed. Another test may hold them too.
    assert sum("another process of dithc has pinned threads to CPU(s)" in log for log in logs) >= 3, logs


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "cpus"), [(4 * len(CPUS), CPUS), (2, CPUS[-1:])], ids=["machine", "one CPU"])
def test_oversubscribed_team_finishes_and_logs_a_warning(threads, cpus):
    assert f"{threads} threads share {len(cpus)} CPU(s)" in finish(start(threads, cpus))


@needs_two_cpus
@pytest.mark.slow
def test_cpu_mask_can_shrink_under_a_running_team():
    finish(start(2, CPUS[:2], CPUS[0]))


@pytest.mark.parametrize("cpu", [1023, 1024, 100_000])
def test_rejected_pinning_is_logged_and_threads_stay_unpinned(cpu, monkeypatch, caplog):
    planned = thread_layout.ThreadLayout(num_threads=2, cpus=(0, cpu), clusters=(range(2),), nodes=())
    monkeypatch.setattr(contexts, "planned_layout", lambda node, num_threads: planned)
    monkeypatch.setattr(contexts, "claim", lambda cpus: [])
    with caplog.at_level("WARNING"):
        context = contexts._create("ref", 2)
    assert f"threads are not pinned to CPUs [0, {cpu}]" in caplog.text
    assert contexts._layouts.pop(context).cpus == ()
    native.library().hc_barrier_ceiling(context, 10)


@pytest.mark.parametrize(("quota", "cpus"), [(None, 8), (16.0, 8), (2.5, 3)])
def test_more_threads_than_cpus_or_quota_are_logged_and_spin_less(monkeypatch, caplog, quota, cpus):
    machine = discover_machine()
    limits = replace(machine.limits, allowed_cpus=tuple(range(8)), cpu_quota=quota)
    monkeypatch.setattr(contexts, "discover_machine", lambda: replace(machine, limits=limits))
    spins = []
    monkeypatch.setattr(contexts, "new_context", lambda *_, spin_nanoseconds, **__: spins.append(spin_nanoseconds) or 0)
    monkeypatch.setattr(contexts, "_layouts", {})
    with caplog.at_level("WARNING"):
        contexts._create("ref", cpus)
        assert "share" not in caplog.text
        contexts._create("ref", cpus + 1)
    assert f"{cpus + 1} threads share {cpus} CPU(s)" in caplog.text
    assert spins == [thread_layout.SPIN_NANOSECONDS, contexts.SHORTEST_SPIN_NANOSECONDS]


@needs_two_cpus
def test_caller_runs_on_the_first_cpu_and_mask_is_restored():
    """Both threads use one CPU. The other CPU is unused, as if kept for communication."""
    first, second = CPUS[:2]
    context = thread_layout.new_context(
        discover_machine(),
        thread_layout.ThreadLayout(num_threads=2, cpus=(first, first), clusters=(range(2),), nodes=()),
        isa="ref",
    )
    places = []

    def job(_: object, thread: int, __: int) -> None:
        if thread == 0:
            fields = Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()
            places.append(int(fields[36]))

    try:
        for _ in range(20):
            os.sched_setaffinity(0, {second})
            os.sched_setaffinity(0, CPUS)
            native.library().hc_run(context, Callback(job), None)
            assert os.sched_getaffinity(0) == set(CPUS)
    finally:
        os.sched_setaffinity(0, CPUS)
        native.library().hc_context_destroy(context)
    assert places.count(first) > 15, places  # the system may move it at any time


def test_rejected_memory_nodes_are_dropped_with_a_warning(monkeypatch, caplog):
    planned = thread_layout.ThreadLayout(num_threads=2, cpus=(), clusters=(range(1), range(1, 2)), nodes=(0, 1023))
    monkeypatch.setattr(contexts, "planned_layout", lambda node, num_threads: planned)
    with caplog.at_level("WARNING"):
        context = contexts._create("ref", 2)
    assert "refuses to bind pages to nodes (0, 1023)" in caplog.text
    assert contexts._layouts.pop(context).nodes == ()


def test_memory_is_bound_only_if_clusters_are_on_different_nodes():
    machine = discover_machine()
    clusters = tuple(replace(machine.clusters[0], index=i, node=node, cores=(i,)) for i, node in enumerate((2, 5)))
    cores = tuple(replace(machine.cores[0], index=i, cpus=(i,), cluster=i) for i in range(2))
    node = replace(machine, cores=cores, clusters=clusters, limits=replace(machine.limits, allowed_cpus=(0, 1)))
    planned = thread_layout.planned_layout(node, 2)
    assert (planned.clusters, planned.nodes, planned.cpus) == ((range(1), range(1, 2)), (2, 5), (0, 1))
    same_node = replace(node, clusters=tuple(replace(cluster, node=2) for cluster in clusters))
    assert thread_layout.planned_layout(same_node, 2).nodes == ()
    unknown = replace(node, clusters=(clusters[0], replace(clusters[1], node=None)))
    assert thread_layout.planned_layout(unknown, 2).nodes == ()
    assert thread_layout.planned_layout(node, 1).nodes == ()


@pytest.mark.slow
def test_cpu_claim_is_exclusive_and_released_at_process_end():
    cpu = 100_000 + os.getpid()
    command = [
        sys.executable,
        "-c",
        f"from dithc.engine.native.contexts import claim; print(claim([{cpu}]), flush=True); input()",
    ]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline().strip() == "[]"
    assert contexts.claim([cpu]) == [cpu]
    other.kill()
    other.wait()
    assert contexts.claim([cpu]) == []
    assert contexts.claim([cpu]) == []  # claimed by this process now
    contexts._claims.pop(cpu).close()


INTERRUPTED = """
import signal, threading
import torch
from dithc.engine import hcops
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
hcops.use("c")
torch.set_num_threads(2)
x, w = torch.randn(2048, 1024), torch.randn(4096, 1024)
hcops.linear(x, w)
print("ready", flush=True)
try:
    while True:
        hcops.linear(x, w)
except KeyboardInterrupt:
    hcops.linear(x, w)  # the team works on
    print("interrupted", threading.active_count(), flush=True)
"""


@pytest.mark.slow
def test_keyboard_interrupt_is_raised_after_the_running_operator():
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().strip() == "ready"
        signal.sigtimedwait([], 0.3)
        process.send_signal(signal.SIGINT)
        out, log = process.communicate(timeout=600)
    finally:
        process.kill()
    assert out.split() == ["interrupted", "1"], log
