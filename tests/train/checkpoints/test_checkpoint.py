"""Tests of checkpoints: written in the background by all ranks, and loaded by any other number of ranks."""

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dithc.core.artifacts import outputs
from dithc.core.logging import UserError
from dithc.engine import native
from dithc.engine.comm import Group
from dithc.engine.native import instruction_sets
from dithc.train import background, train
from dithc.train.background import Background, Canceled
from dithc.train.checkpoints import snapshot, writer
from dithc.train.checkpoints import state as content
from dithc.train.checkpoints.snapshot import assign_pieces
from dithc.train.job import DONE, StepTimer
from dithc.train.step.step import Trainer
from tests.ranks import run_on_ranks
from tests.train.conftest import assert_equal, hashes, store_of, tensors_of
from tests.train.strategies.test_strategies import several_ranks, train_on_ranks

KINDS = ("model", "ema", "optimizer")
# Loads a checkpoint and rewrites it at the same step.
REWRITE = """
import pickle, sys
import torch
from dithc.engine.comm import connect_ranks
from dithc.train.pipeline import compose
def rewrite(attempt):
    assert attempt.state.step == 4
    attempt.saver.save(attempt.state)
    attempt.saver.finish()
    return 0
with connect_ranks(2, timeout_seconds=600) as group, open(sys.argv[1], "rb") as file:
    torch.set_num_threads(1)
    compose._is_done, compose.Attempt.run = (lambda store, step: False), rewrite
    job = pickle.load(file)
    assert compose.train(job, group) == 0
"""


@pytest.mark.slow
def test_steps_during_an_asynchronous_save_do_not_alter_the_checkpoint(job, monkeypatch):
    """The writer is blocked for two more steps; each of them changes every number that it writes."""
    whole, slow = job("whole", keep_last=9), job("slow", keep_last=9)
    train(whole, Group())
    gate, write, step, written = threading.Event(), writer.write_file, Trainer.step, []

    def held_write(path, content, **given):
        if "step_0000002" in str(path):
            assert gate.wait(600)
            written.append(max(steps))
        return write(path, content, **given)

    steps = [0]

    def counted_step(self, number):
        values = step(self, number)
        steps.append(number)
        if number == 4:
            gate.set()
        return values

    monkeypatch.setattr(writer, "write_file", held_write)
    monkeypatch.setattr(Trainer, "step", counted_step)
    assert train(slow, Group()) == DONE
    assert min(written) >= 4, "the writer was to be slower than two steps"
    for number in (2, 4, 6):
        assert_equal(tensors_of(slow, number), tensors_of(whole, number))
    assert "waited for a checkpoint" in (store_of(slow).folder / "events.jsonl").read_text()


@pytest.mark.slow
def test_blocking_and_asynchronous_checkpoints_are_byte_identical(job):
    both = [job(path, checkpoint_mode=path) for path in ("async", "blocking")]
    for one in both:
        train(one, Group())
    assert hashes(both[0]) == hashes(both[1])


def test_training_without_memory_for_a_copy_waits_and_logs_the_wait(job, monkeypatch, caplog):
    monkeypatch.setattr(snapshot, "available_bytes", lambda: 100_000)
    one, whole = job("poor", until=2), job("rich", until=2)
    train(one, Group())
    assert "checkpoints are written while training waits" in caplog.text
    monkeypatch.undo()
    train(whole, Group())
    assert_equal(tensors_of(one, 2), tensors_of(whole, 2))


def test_checkpoint_files_contain_the_state_as_standard_safetensors(job):
    one = job(until=2)
    train(one, Group())
    folder = store_of(one).open(2).folder
    assert [path.name for path in outputs.files_of(folder)] == sorted(
        ["checkpoint.json", "pinned", *(f"{kind}.safetensors" for kind in KINDS)]
    )
    weights, moments = load_file(folder / "model.safetensors"), load_file(folder / "optimizer.safetensors")
    assert float(moments["step"]) == 2
    trained = {name.removeprefix("exp_avg.") for name in moments if name.startswith("exp_avg.")}
    assert weights.keys() - trained == {"pos_embed"}
    meta = store_of(one).open(2).meta
    assert (meta["step"], meta["seed"], meta["position"]["sample"]) == (2, 0, 16)


def test_resumed_training_uses_the_instruction_set_of_the_checkpoint(job, monkeypatch):
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    monkeypatch.setattr(instruction_sets, "_pinned", [])
    monkeypatch.delenv("HCOPS_ISA", raising=False)
    instruction_sets.pin("ref", "a slower measurement of the others")
    train(job(until=2), Group())
    whole = job("whole")
    train(whole, Group())
    instruction_sets._pinned.clear()
    native.isa_choice.cache_clear()
    assert native.instruction_set() != "ref"
    train(job(), Group())
    assert {store_of(job()).open(step).meta["isa"] for step in (2, whole.until)} == {"ref"}
    assert_equal(tensors_of(job(), whole.until), tensors_of(whole, whole.until))
    instruction_sets._pinned.clear()
    native.isa_choice.cache_clear()


def test_failed_training_discards_the_pending_checkpoint(job, monkeypatch):
    step = Trainer.step

    def failing_step(self, number):
        if number == 3:
            raise RuntimeError("something else")
        return step(self, number)

    def endless(path, content, *, check):
        path.touch()
        while True:
            check()
            time.sleep(0.001)

    write = writer.write_file
    monkeypatch.setattr(
        writer, "write_file", lambda path, *c, **g: (endless if "0002" in str(path.parent) else write)(path, *c, **g)
    )
    monkeypatch.setattr(Trainer, "step", failing_step)
    with pytest.raises(RuntimeError, match="something else"):
        train(job(), Group())
    assert store_of(job()).steps() == [0]
    assert not list(store_of(job()).folder.glob(".step_*"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.parametrize("other", [lambda value: value.to(torch.bfloat16), lambda value: value[:1]])
def test_weights_of_mismatched_dtype_or_shape_are_rejected(other):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError, match="as in this model"):
        content._load(model, before | {"weight": other(before["weight"])}, origin=Path("x"))


def test_walltime_grace_includes_the_complete_save_time(job, monkeypatch):
    saves, write = [], writer.write_file
    # the counter of a loaded machine is coarse
    monkeypatch.setattr(background, "_core_wait_seconds", lambda: 0.0)
    monkeypatch.setattr(StepTimer, "save", lambda self, seconds: saves.append(seconds))
    monkeypatch.setattr(writer, "write_file", lambda *c, **g: (time.sleep(0.5), write(*c, **g))[1])
    train(job(until=2), Group())
    assert len(saves) == 2
    assert all(1.2 < seconds < 30 for seconds in saves), f"three files a checkpoint, 0.5 s each: {saves}"


def test_exclusive_pieces_keep_the_rank_and_shared_pieces_are_balanced():
    shared = {("model", f"layer {n}", 0, 0, 10): 100 for n in range(6)}
    pieces = [{**shared, ("ema", "w", -1, 0, 50): 400}, {**shared, ("ema", "w", -1, 50, 50): 0}, shared]
    shares = assign_pieces(pieces)
    assert set().union(*shares) == {key for keys in pieces for key in keys}
    assert sum(map(len, shares)) == 8
    assert [sum(pieces[rank][key] for key in share) for rank, share in enumerate(shares)] == [400, 300, 300]


def test_background_task_stores_the_error_and_ends_on_cancellation():
    def fail(_: Background) -> None:
        raise ValueError("bad")

    def wait(task: Background) -> None:
        while True:
            task.check()
            time.sleep(0.001)

    tasks = [Background(function, name="test") for function in (fail, wait)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.cancel()
    assert isinstance(tasks[0].error, ValueError)
    assert isinstance(tasks[1].error, Canceled)


def test_background_task_runs_at_lowest_priority_without_process_change():
    task = Background(lambda _: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), name="test")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    task.start()
    task.join()
    assert task.result == 19
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_background_task_without_a_core_restarts_in_the_waiting_thread(monkeypatch):
    """A system that lets no thread raise its priority, and another process that uses the thread's core."""
    threads = []

    def work(task: Background) -> str:
        threads.append(threading.current_thread())
        while len(threads) == 1:
            task.check()
            time.sleep(0.001)
        return "done"

    def reject(*_: object) -> None:
        raise PermissionError

    task = Background(work, name="test")
    task.start()
    while not threads:
        time.sleep(0.001)
    monkeypatch.setattr(os, "sched_setscheduler", reject)
    monkeypatch.setattr(background, "STARVED_SECONDS", 0.05)
    seconds = iter([0.0, 0.05])
    monkeypatch.setattr(background, "_core_wait_seconds", lambda thread=None: next(seconds, 0.05) if thread else 0.0)
    task.wait()
    assert threads == [task, threading.current_thread()]
    assert (task.result, task.error) == ("done", None)


class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    def test_checkpoint_state_is_equal_for_any_rank_count_and_strategy(self, job, tmp_path):
        """Loading and saving, without a step in between, changes no number for any distribution."""
        first = job("a", until=4, strategy="dp", checkpoint_every=4)
        done = train_on_ranks(tmp_path, [first])
        assert done.returncode == 0, done.stderr
        folder = store_of(first).open(4).folder
        names = [f"{kind}-0000{number}-of-00002.safetensors" for kind in KINDS for number in (1, 2)]
        assert sorted(path.name for path in folder.glob("*.safetensors")) == sorted(names)
        sizes = [sum((folder / name).stat().st_size for name in names[rank::2]) for rank in (0, 1)]
        assert max(sizes) < 1.1 * min(sizes)
        truth = tensors_of(first, 4)
        for strategy, sharding in (("dp+tp", "none"), ("cftp", "none"), ("dp", "zero1")):
            one = job("a", until=4, strategy=strategy, sharding=sharding, checkpoint_every=4)
            rewritten = run_on_ranks(REWRITE, given=one, folder=tmp_path)
            assert rewritten.returncode == 0, rewritten.stderr
            assert_equal(tensors_of(one, 4), truth)
        alone = job("a", until=6, checkpoint_every=2)
        assert train(alone, Group()) == DONE
        assert sorted(path.name for path in store_of(alone).open(6).folder.glob("*.safetensors")) == sorted(
            f"{kind}.safetensors" for kind in KINDS
        )
