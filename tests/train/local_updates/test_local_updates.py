"""Tests of local updates: the outer optimizer against NumPy, rounded updates, interruptions, several ranks, faults."""

import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dithc.config import load, training
from dithc.core.logging import UserError, read_metrics
from dithc.core.tensor_files import read_tensors
from dithc.engine.comm import Group
from dithc.latents import Batches, Latents
from dithc.train import train
from dithc.train.local_updates import Interrupted, LocalUpdates, encoding
from tests.ranks import needs_launcher
from tests.train.conftest import assert_equal
from tests.train.strategies.test_strategies import train_on_ranks

WORKERS = ["a", "b", "c"]
METADATA = {"codec": "c", "latent": 1, "model": "m"}
PROGRAM = """
import pickle, sys, torch
from dithc.engine.comm import Group
from dithc.train import train
torch.set_num_threads(1)
sys.exit(train(pickle.loads(sys.stdin.buffer.read()), Group()))
"""


def encoded(values, dtype):
    tensors = encoding.empty(len(values), dtype)
    for part in encoding.chunks(len(values)):
        encoding.encode(values[part], tensors, part)
    return tensors


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 0.0), ("bf16", 2**-8), ("int4", 0.5 / 7)])
@pytest.mark.parametrize("size", [1, 64, 1000])
def test_rounded_updates_are_within_half_a_unit_of_the_largest_number(monkeypatch, dtype, tolerance, size):
    monkeypatch.setattr(encoding, "CHUNK", 256)
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    values[: size // 3] = 0.0
    tensors = encoded(values, dtype)
    found = torch.cat([encoding.decode(tensors, part) for part in encoding.chunks(size)])
    assert found.shape == values.shape
    assert (found - values).abs().max() <= 1.0001 * tolerance * values.abs().max()
    encoding.check(tensors, dtype, size=size)
    with pytest.raises(ValueError, match="values"):
        encoding.check(tensors, dtype, size=size + 65)


def test_workers_take_the_samples_of_one_batch_in_turn(latents):
    def batches(size, worker):
        settings = {"seed": 1, "label_dropout": 0.1, "augment": "mirror", "times": lambda uniform: uniform}
        return Batches(Latents(latents.parent), global_batch_size=size, worker=worker, **settings)

    whole, parts = batches(6, (0, 1)), [batches(2, (number, 3)) for number in range(3)]
    for step in (0, 7):
        for number, part in enumerate(parts):
            assert torch.equal(part.batch(step).noise, whole.batch(step).noise[number::3])
            assert part.rows(step).tolist() == whole.rows(step)[number::3].tolist()
        assert parts[0].epoch(step) == whole.epoch(step)


class Quadratic:
    """A worker with the loss |w - center|^2 / 2 and plain gradient descent."""

    def __init__(self, folder, name, settings, *, reason=lambda: None):
        self.model = nn.Module()
        self.model.w = nn.Parameter(torch.ones(8))
        average = SimpleNamespace(state={"w": torch.ones(8)})
        average.load = lambda state: average.state["w"].copy_(state["w"])
        nothing = SimpleNamespace(sharded_state=None, wait_for_weights=list, load_from_module=list)
        self.state = SimpleNamespace(model=self.model, strategy=nothing, ema=average, outer=None)
        run = SimpleNamespace(local_updates=settings, steps=60, segment_steps=60, keep_last=2)
        (folder / "exchange").mkdir(exist_ok=True)
        machine = SimpleNamespace(exchange_folder=str(folder / "exchange"))
        job = SimpleNamespace(run=run, machine=machine, name=name, spec={"lr": 0.1}, paths=None)
        store = SimpleNamespace(steps=list)
        self.rounds = LocalUpdates(job, Group(), self.state, store, metadata=METADATA, stop_reason=reason)
        self.center = torch.full((8,), float(settings.workers.index(name) ** 2))

    def steps(self, first, last, *, until):
        for number in range(first, last + 1):
            with torch.no_grad():
                self.model.w -= 0.1 * (self.model.w - self.center)
                self.state.ema.state["w"].lerp_(self.model.w, 0.5)
            if self.rounds.is_due(number):
                self.rounds.finish(is_last=number == until)
        return self.model.w.detach().clone()


def reference(steps, until, *, rate, beta, overlap):
    """Return the common weights after `until` steps, by the definition in float64."""
    weights = np.ones(len(WORKERS))
    start, momentum, before = weights.copy(), np.zeros(len(WORKERS)), np.zeros(len(WORKERS))
    for number in range(1, until + 1):
        weights = weights - 0.1 * (weights - np.arange(len(WORKERS)) ** 2)
        if number % steps == 0:
            update = start - weights
            total = np.full(len(WORKERS), update.sum())
            if overlap:
                late = before.sum() - before
                total = late + (total if number == until else update)
                before = update
            momentum = beta * momentum + total / len(WORKERS)
            start = start - rate * (total / len(WORKERS) + beta * momentum)
            weights = start.copy()
    return weights.mean()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("steps", "rate", "beta"), [(1, 1.0, 0.0), (3, 0.7, 0.9), (4, 1.0, 0.0)])
def test_outer_steps_follow_their_definition(tmp_path, steps, rate, beta, overlap):
    settings = training.LocalUpdatesConfig(
        workers=WORKERS, steps=steps, overlap=overlap, outer_lr=rate, outer_momentum=beta, dtype="fp32"
    )
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda name: Quadratic(tmp_path, name, settings).steps(1, 12, until=12), WORKERS))
    assert all(torch.equal(weights, found[0]) for weights in found)
    expected = reference(steps, 12, rate=rate, beta=beta, overlap=overlap)
    assert found[0].numpy() == pytest.approx(np.full(8, expected), abs=1e-5)


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_rounding_errors_are_added_to_the_next_update(tmp_path, dtype):
    settings = training.LocalUpdatesConfig(workers=WORKERS, steps=2, overlap=False, dtype=dtype)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda name: Quadratic(tmp_path, name, settings).steps(1, 60, until=60), WORKERS))
    assert found[0].numpy() == pytest.approx(np.full(8, 5 / 3), abs=5e-3)


def test_interrupted_round_is_finished_later_with_the_published_update(tmp_path):
    settings = training.LocalUpdatesConfig(workers=["a", "b"], steps=2, overlap=False)
    reasons = [None, "signal"]
    first = Quadratic(tmp_path, "a", settings, reason=lambda: reasons[-1])
    with pytest.raises(Interrupted):
        first.steps(1, 2, until=4)
    weights = first.model.w.detach().clone()
    reasons.append(None)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(Quadratic(tmp_path, "b", settings).steps, 1, 4, until=4)
        first.rounds.finish()
        assert not torch.equal(first.model.w, weights)
        assert torch.equal(first.steps(3, 4, until=4), other.result())


def test_waiting_for_a_worker_with_other_settings_names_the_difference(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("dithc.train.local_updates.rounds.REPORT_SECONDS", 0.01)
    settings = training.LocalUpdatesConfig(workers=["a", "b"], steps=2)
    monkeypatch.setitem(METADATA, "codec", "other")
    Quadratic(tmp_path, "b", settings)
    monkeypatch.setitem(METADATA, "codec", "c")
    end = time.monotonic() + 0.5
    worker = Quadratic(tmp_path, "a", settings, reason=lambda: "signal" if time.monotonic() > end else None)
    with pytest.raises(Interrupted):
        worker.steps(1, 4, until=4)
    assert "for updates of round 1: b has other settings (codec: c -> other)" in caplog.text


def test_update_of_another_network_is_an_error(tmp_path):
    settings = training.LocalUpdatesConfig(workers=["a", "b"], steps=2, overlap=False)
    worker, other = Quadratic(tmp_path, "a", settings), Quadratic(tmp_path, "b", settings)
    other.rounds._folder.publish("updates", 1, encoded(torch.ones(9), "bf16"), saved=0)
    with pytest.raises(UserError, match="worker b"):
        worker.steps(1, 2, until=4)


def test_incomplete_copy_of_an_update_is_not_read(tmp_path):
    settings = training.LocalUpdatesConfig(workers=["a", "b"], steps=2, overlap=False)
    folder = Quadratic(tmp_path, "b", settings).rounds._folder
    folder.publish("updates", 1, encoded(torch.ones(8), "bf16"), saved=0)
    assert folder.read("b", "updates", 1) is not None
    path = next(folder.folder.glob("b/updates-*.safetensors"))
    content = path.read_bytes()
    for damaged in (content[:-1], content[:-1] + b"x"):
        path.write_bytes(damaged)
        assert folder.read("b", "updates", 1) is None
    folder.publish("updates", 5, encoded(torch.ones(8), "bf16"), saved=4)
    assert path.exists(), "worker a has no checkpoint with round 1"


def test_reason_for_a_missing_update_is_named(tmp_path):
    settings = training.LocalUpdatesConfig(workers=["a", "b"], steps=2)
    folder = Quadratic(tmp_path, "a", settings).rounds._folder
    assert "no worker of this name" in folder.reason("b", "updates", 1)
    other = Quadratic(tmp_path, "b", settings).rounds._folder
    assert folder.reason("b", "updates", 1) == "b has not published it yet"
    other.publish("updates", 1, encoded(torch.ones(8), "bf16"), saved=0)
    path = next(folder.folder.glob("b/updates-*.safetensors"))
    path.write_bytes(b"damaged")
    assert "damaged" in folder.reason("b", "updates", 1)
    other.publish("updates", 5, encoded(torch.ones(8), "bf16"), saved=4)
    assert path.exists(), "worker a may continue from step 0"
    other._saved["a"] = 4
    other.publish("updates", 6, encoded(torch.ones(8), "bf16"), saved=4)
    assert not path.exists()
    assert "b is in round 7 and has removed it" in folder.reason("b", "updates", 1)


@pytest.fixture
def workers(job, tmp_path):
    """Return a factory of the jobs of two workers; each has the settings of a test and its own name."""

    def make(store, *, until=24, **changes):
        local = {"workers": ["small-a", "small-b"], "steps": 2} | changes.pop("local", {})
        (tmp_path / store / "x").mkdir(parents=True)
        settings = {"steps": until, "checkpoint_every": 4, "global_batch_size": 4, "local_updates": local, **changes}
        jobs = [job(store, until=until, exchange_folder=str(tmp_path / store / "x"), **settings) for _ in range(2)]
        return [replace(one, name=name, paths=replace(one.paths, out=tmp_path / store / f"{name}.json"))
                for one, name in zip(jobs, local["workers"], strict=True)]  # fmt: skip

    return make


def start(job):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    process.stdin.write(pickle.dumps(job))
    process.stdin.close()
    return process


def finish(*processes):
    for process in processes:
        errors = process.stderr.read().decode()
        assert process.wait() == 0, errors


def final(job):
    folder = next(job.paths.store.glob(f"{job.name}-*")) / f"step_{job.until:07d}"
    files = {kind: read_tensors(folder / f"{kind}.safetensors") for kind in ("model", "ema")}
    return {f"{kind} {name}": value for kind, held in files.items() for name, value in held.items()}


@pytest.mark.slow
@pytest.mark.sampled("local updates")
@pytest.mark.parametrize("local", [{}, {"overlap": False, "dtype": "int4", "outer_momentum": 0.5, "outer_lr": 0.7}])
def test_stopped_and_killed_workers_continue_to_the_same_bytes(workers, local):
    whole = workers("whole", local=local)
    finish(*map(start, whole))
    assert_equal(final(whole[0]), final(whole[1]))
    stopped = workers("stopped", local=local)
    alone = start(stopped[0])
    store = stopped[0].paths.store
    while not list(store.glob("x/*/small-a/updates-*.json")):
        assert alone.poll() is None, alone.stderr.read().decode()
        time.sleep(0.05)
    time.sleep(0.3)  # waits for the other worker, in this or the next round
    alone.send_signal(signal.SIGTERM)
    assert alone.wait() == 75, alone.stderr.read().decode()
    pair = [start(one) for one in stopped]
    while not list(store.glob("small-b-*/step_0000004/checkpoint.json")):
        assert pair[1].poll() is None, pair[1].stderr.read().decode()
        time.sleep(0.005)
    pair[1].kill()
    pair[1].wait()
    finish(start(stopped[1]), pair[0])
    for one, other in zip(stopped, whole, strict=True):
        assert_equal(final(one), final(other))


@pytest.mark.slow
@pytest.mark.sampled("local updates")
def test_worker_that_stops_in_its_last_round_repeats_no_step(workers):
    jobs = workers("last", until=2, checkpoint_every=100)
    alone = start(jobs[0])
    while not list(jobs[0].paths.store.glob("x/*/small-a/updates-*.json")):
        assert alone.poll() is None, alone.stderr.read().decode()
        time.sleep(0.05)
    alone.send_signal(signal.SIGTERM)
    assert alone.wait() == 75
    assert not jobs[0].paths.out.exists()
    saved = final(jobs[0])
    finish(*map(start, jobs))
    assert jobs[0].paths.out.exists()
    assert_equal(final(jobs[0]), final(jobs[1]))
    assert not torch.equal(saved["model final_layer.linear.weight"], final(jobs[0])["model final_layer.linear.weight"])
    store = next(jobs[0].paths.store.glob("small-a-*"))
    assert len(read_metrics(store / "metrics")) == 2


@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
@pytest.mark.sampled("several ranks")
def test_ranks_of_a_worker_change_only_rounding(workers, tmp_path):
    alone, several = workers("alone"), workers("several", strategy="dp", sharding="zero1")
    for jobs, train_first in ((alone, None), (several, train_on_ranks)):
        other = start(jobs[1])
        if train_first is None:
            assert train(jobs[0], Group()) == 0
        else:
            done = train_first(tmp_path, [jobs[0]])
            assert done.returncode == 0, done.stderr
        finish(other)
        assert_equal(final(jobs[0]), final(jobs[1]))
    for name, value in final(alone[0]).items():
        assert torch.allclose(final(several[0])[name], value, rtol=1e-3, atol=1e-5), name


def test_settings_of_workers_are_checked_together():
    dataset = {
        "title": "toy",
        "source": {"kind": "image-folder", "synthetic": {}},
        "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixels",
    }
    base = {"datasets": {"toy": dataset}, "codecs": {"pixels": {"kind": "pixel"}}}

    def faults(machine=None, **runs):
        plain = {"dataset": "toy", "steps": 32, "local_updates": {"workers": ["a", "b"]}}
        content = base | {"machine": machine or {}, "runs": {name: plain | changes for name, changes in runs.items()}}
        try:
            load(content)
        except UserError as error:
            return str(error)
        return ""

    assert faults(a={}, b={}) == faults(a={}) == ""
    assert "does not contain c" in faults(c={})
    assert "differs" in faults(a={}, b={"lr": 0.1})
    assert "does not divide" in faults(a={"steps": 40})
    assert "twice" in faults(a={"local_updates": {"workers": ["a", "a"]}})
    assert "dp+tp" in faults(a={}, machine={"strategy": "dp+tp"})
