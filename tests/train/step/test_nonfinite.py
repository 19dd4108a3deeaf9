"""Tests of numbers that are not finite: step, rank and layer are named; the run stops, skips, or rolls back."""

import dataclasses
import json
import logging
import math

import pytest
import torch

from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.diffusion import Objective
from dithc.engine.comm import Group
from dithc.latents import Batches, Latents
from dithc.train import train
from dithc.train.job import DONE
from dithc.train.monitoring.training_log import TrainingLog
from dithc.train.step import nonfinite
from dithc.train.step.nonfinite import NonFiniteError, SkippedSteps
from dithc.train.step.nonfinite_search import NonFiniteSearch
from tests.ranks import needs_launcher, run_on_ranks
from tests.train import faults
from tests.train.conftest import hashes, rows, store_of, tensors_of

# Trains each job under its fault. A number that is not finite ends only its job, and every rank records how it ended.
PROGRAM = """
import pathlib, pickle, sys
import torch
from dithc.engine.comm import connect_ranks
from dithc.train import train
from dithc.train.step.nonfinite import NonFiniteError
from tests.train import faults
with connect_ranks(2, timeout_seconds=600) as group, open(sys.argv[1], "rb") as file:
    torch.set_num_threads(1)
    for name, fault, job in pickle.load(file):
        if fault:
            faults.inject(**fault)
        try:
            ended = train(job, group)
        except NonFiniteError as error:
            ended = error
        pathlib.Path(sys.argv[1]).with_name(f"{name} of rank {group.rank}").write_text(str(ended))
        faults.heal()
"""


@pytest.fixture(autouse=True)
def _healed():
    yield
    faults.heal()


def lines_of(job) -> list[dict]:
    """Return every line of the metrics, parsed as strict JSON without NaN."""

    def refuse(word):
        raise AssertionError(word)

    lines = (store_of(job).folder / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def events(job, name: str) -> list[dict]:
    lines = (store_of(job).folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "latents", "image": 5}, r"the loss of rank 0[\s\S]*rank 0: the latents of image 5 of the global batch, before"),
        ({"kind": "weights"}, r"the loss of rank 0[\s\S]*rank 0: the weights of blocks\.1\.attn\.qkv\.weight, before any"),
        ({"kind": "gradient"}, r"the gradient[\s\S]*the gradient of the \w+ of layer blocks\.0\.mlp\.fc2, in the backward"),
        ({"kind": "once", "times": 1}, r"the loss of rank 0[\s\S]*none on any rank"),
        ({"kind": "update"}, r"at step 4: the weights after step 3, although[\s\S]*rank 0: the weights of x_embedder"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("settings", [{"micro_batch_size": 3}, {"activation_checkpointing": "block", "dtype": "bf16"}])
def test_nonfinite_error_reports_location_and_checkpoint_stays_finite(job, fault, message, settings):
    one = job(checkpoint_every=1, **settings)
    faults.inject(at=3, **fault)
    with pytest.raises(NonFiniteError, match=message) as caught:
        train(one, Group())
    assert f"at step {4 if fault['kind'] == 'update' else 3}" in str(caught.value)
    assert store_of(one).newest().step == 2
    assert all(value.isfinite().all() for value in tensors_of(one, 2).values())


def test_nonfinite_error_reports_the_latents_row(job):
    faults.inject("latents", at=1, image=6)
    one = job()
    with pytest.raises(NonFiniteError) as caught:
        train(one, Group())
    settings = {"seed": 0, "global_batch_size": 8, "label_dropout": 0.0, "augment": "mirror"}
    source = Batches(Latents(one.paths.latents.parent), **settings, times=Objective.of().times)
    assert f"(row {source.rows(0)[6]} of the latents)" in str(caught.value)
    assert torch.equal(torch.from_numpy(source.latents.labels[source.rows(0)]).long(), source.batch(0).y)


class TestFirstLayer:
    """The first layer in execution order, for any order of creation."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.late, self.early = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.late(self.early(x) * self.factor)

    @pytest.mark.parametrize(
        ("factor", "early", "message"),
        [
            (1.0, 1e38, "the output of layer early, of image 9 of the global batch"),
            (math.inf, 1.0, "the input of layer late, of images 8 to 9"),
            (1.0, 1.0, None),
        ],
    )
    def test_search_reports_the_first_layer_in_execution_order(self, factor, early, message):
        net = self.Net()
        net.factor = factor
        torch.nn.init.constant_(net.early.weight, 1.0)
        with NonFiniteSearch(net) as search:
            x = torch.ones(2, 4)
            x[1] *= early
            assert search.images(x, x, part=slice(8, 10)) == []
            search.loss(net(x).sum(dim=1))
        message = message and message.replace("images 8 to 9", "image 8, 9")
        assert message is None if search.found is None else search.found.startswith(message)
        assert not net.late._forward_hooks

    def test_search_reports_the_loss_if_all_layer_outputs_are_finite(self):
        net = self.Net()
        net.factor = 1.0
        with NonFiniteSearch(net) as search:
            search.images(torch.ones(2, 4), torch.ones(2, 4), part=slice(0, 2))
            net(torch.ones(2, 4))
            search.loss(torch.tensor([1.0, math.nan]))
        assert search.found == "the loss of image 1 of the global batch; every layer's output is finite"
        assert not search.in_weights


@pytest.mark.parametrize("kind", ["latents", "gradient"])
def test_skipped_step_preserves_the_state_and_training_continues(job, kind):
    one = job(on_nonfinite="skip", checkpoint_every=1, keep_last=9)
    faults.inject(kind, at=3)
    assert train(one, Group()) == DONE
    before, after, end = (tensors_of(one, step) for step in (2, 3, 6))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert end["optimizer step"] == 5
    assert not any(torch.equal(after[name], end[name]) for name in after if "exp_avg" in name and "qkv" in name)
    third = lines_of(one)[2]
    assert third["loss"] is third["grad_norm"] is third["images_per_second"] is None
    assert (third["skipped_steps"], third["data_seconds"]) == (1, None)
    assert len(lines_of(one)) == 6
    assert math.isnan(rows(one)[2]["loss"])
    (event,) = events(one, "skipped")
    assert event["step"] == 3
    assert list(event["ranks"]) == ["0"]
    numbers = Manifest.read(one.paths.out).summary
    assert numbers["skipped_steps"] == [3]
    assert math.isfinite(numbers["mean_loss_last_100"])


@pytest.mark.sampled
@pytest.mark.parametrize(("policy", "kind"), [("skip", "latents"), ("rollback", "gradient")])
@pytest.mark.slow
def test_resumed_training_with_a_skipped_step_is_bit_identical(job, policy, kind):
    whole = job("whole", on_nonfinite=policy)
    faults.inject(kind, at=4)
    assert train(whole, Group()) == DONE
    for until in (3, 4, 6):
        last = job("parts", on_nonfinite=policy, until=until)
        assert train(last, Group()) == DONE
    assert hashes(last) == hashes(whole)
    one, other = ([row["loss"] for row in rows(each)] for each in (whole, last))
    assert [math.isnan(loss) for loss in one] == [False, False, False, True, False, False]
    assert repr(one) == repr(other)
    assert Manifest.read(last.paths.out).summary["skipped_steps"] == [4]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_step_skipped_before_a_crash_is_skipped_after_restart(job, policy, monkeypatch):
    whole, broken = job("whole", on_nonfinite=policy), job("broken", on_nonfinite=policy)
    faults.inject("once", at=4, times=1)
    assert train(whole, Group()) == DONE
    faults.heal()
    faults.inject("once", at=4, times=1)

    def crash(self, number):
        raise ConnectionError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLog, "rewind", crash)
        with pytest.raises(ConnectionError):
            train(broken, Group())
    faults.heal()
    assert train(broken, Group()) == DONE
    assert hashes(broken) == hashes(whole)


@pytest.mark.slow
def test_rollback_restores_the_checkpoint_and_logs_the_skipped_step(job, caplog):
    caplog.set_level(logging.INFO)
    one, clean = job(on_nonfinite="rollback"), job("skip", on_nonfinite="skip")
    faults.inject("weights", at=4, times=1)
    assert train(one, Group()) == DONE
    assert "back to step 2; step 3 is skipped (on_nonfinite: rollback)" in caplog.text
    (event,) = events(one, "rolled back")
    assert (event["step"], event["to"]) == (3, 2)
    assert [row["step"] for row in lines_of(one)] == [1, 2, 3, 3, 4, 5, 6]
    faults.heal()
    faults.inject("latents", at=3)
    assert train(clean, Group()) == DONE
    assert hashes(one) == hashes(clean)


@pytest.mark.parametrize(("at", "checkpoint"), [(3, 2), (4, 2), (6, 4)])
def test_nonfinite_update_is_rolled_back_and_never_checkpointed(job, at, checkpoint):
    """In the middle, at a checkpoint, and at the end: bad weights are never kept."""
    one = job(on_nonfinite="rollback", keep_last=9)
    faults.inject("update", at=at)
    assert train(one, Group()) == DONE
    assert [(event["step"], event["to"]) for event in events(one, "rolled back")] == [(at, checkpoint)]
    for step in store_of(one).steps():
        assert all(value.isfinite().all() for value in tensors_of(one, step).values())


@pytest.mark.slow
def test_stop_at_a_nonfinite_state_keeps_the_previous_checkpoint(job, monkeypatch):
    one = job(on_nonfinite="rollback", checkpoint_every=4, walltime_minutes=0.0)
    faults.inject("update", at=1)
    assert train(one, Group()) == 75  # after one step, the walltime is over
    assert store_of(one).steps() == [0]
    assert SkippedSteps(store_of(one), Group()).steps == [1]
    assert train(dataclasses.replace(one, walltime_minutes=None), Group()) == DONE


def test_skip_policy_raises_on_nonfinite_weights_and_suggests_rollback(job, caplog):
    faults.inject("weights", at=3)
    with pytest.raises(NonFiniteError):
        train(job(on_nonfinite="skip"), Group())
    assert "set `on_nonfinite: rollback`" in caplog.text


@pytest.mark.slow
def test_diverged_training_raises_after_the_maximum_consecutive_skips(job, caplog):
    one = job(on_nonfinite="skip", max_grad_norm=None, steps=30, until=30)
    one = dataclasses.replace(one, run=one.run.model_copy(update={"lr": 1e30}))  # more than a configuration accepts
    with pytest.raises(NonFiniteError):
        train(one, Group())
    assert f"{nonfinite.MAX_CONSECUTIVE} consecutive steps are already skipped" in caplog.text
    assert len(events(one, "skipped")) == nonfinite.MAX_CONSECUTIVE
    with pytest.raises(NonFiniteError):  # nor by restarting it
        train(one, Group())


@pytest.mark.slow
def test_rollbacks_to_the_same_checkpoint_are_bounded(job, monkeypatch):
    monkeypatch.setattr(nonfinite, "MAX_SINCE_CHECKPOINT", 2)
    for step in (1, 2, 3):
        faults.inject("latents", at=step)
    one = job(on_nonfinite="rollback", checkpoint_every=6)
    with pytest.raises(NonFiniteError, match="at step 3"):
        train(one, Group())
    assert [event["to"] for event in events(one, "rolled back")] == [0, 0]
    assert train(dataclasses.replace(one, run=one.run.updated(on_nonfinite="skip")), Group()) == DONE
    assert Manifest.read(one.paths.out).summary["skipped_steps"] == [1, 2, 3]


@pytest.mark.slow
def test_damaged_skipped_steps_file_is_rejected(job):
    one = job(until=2)
    train(one, Group())
    (store_of(one).folder / "skipped_steps.json").write_text("{")
    with pytest.raises(UserError, match=r"skipped_steps\.json cannot be read[\s\S]*remove it"):
        train(job(), Group())


@pytest.mark.sampled("several ranks")
@pytest.mark.mpi
@pytest.mark.slow
@needs_launcher
def test_two_ranks_report_the_same_location_and_recover_together(job, tmp_path):
    bad = {"kind": "latents", "at": 4, "image": 5}  # in the second half of the batch
    jobs = [
        ("latents", bad, job("latents")),
        ("weights", {"kind": "weights", "at": 3, "rank": 1}, job("weights", micro_batch_size=2)),
        ("gradient", {"kind": "gradient", "at": 3, "rank": 0}, job("gradient")),
        ("ddp", bad, job("ddp", gradient_sync="ddp")),
        ("layers", {"kind": "weights", "at": 3, "rank": 1}, job("layers", strategy="dp+tp")),
        ("skip", bad, job("skip", on_nonfinite="skip")),
        ("skip-1", bad, job("parts", on_nonfinite="skip", until=4)),
        ("skip-2", bad, job("parts", on_nonfinite="skip")),
        ("back", bad, job("back", on_nonfinite="rollback")),
        ("shared", bad, job("shared", on_nonfinite="rollback", sharding="zero1")),
        ("healed", {"kind": "weights", "at": 4, "rank": 1, "times": 1}, job("healed", on_nonfinite="rollback")),
        ("tensors", bad, job("tensors", on_nonfinite="rollback", strategy="dp+tp")),
    ]
    done = run_on_ranks(PROGRAM, given=jobs, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, at, *locations in (
        ("latents", 4, "the loss of rank 1", "; first, in a repeated computation: rank 1: the latents of image 5 "),
        ("weights", 3, "the loss of rank 1", "computation: rank 1: the weights of blocks.1.attn.qkv.weight, before"),
        (
            "gradient",
            3,
            "the gradient (",
            "computation: rank 0: the gradient of the ",
            "blocks.0.mlp.fc2, in the backward",
        ),
        ("ddp", 4, "the loss of rank 1", "computation: rank 1: the latents of image 5 "),
        ("layers", 3, "the loss of rank 0, 1", "rank 1: the weights of blocks.1.attn.qkv.weight, before"),
    ):
        message, same = ((tmp_path / f"{name} of rank {rank}").read_text() for rank in (0, 1))
        assert message == same
        assert all(location in message for location in (f"at step {at}", *locations)), message
    by_name = {name: one for name, _, one in jobs}
    for name in ("skip", "skip-1", "skip-2", "back", "shared", "healed", "tensors"):
        assert [(tmp_path / f"{name} of rank {rank}").read_text() for rank in (0, 1)] == ["0", "0"]
        assert all(value.isfinite().all() for value in tensors_of(by_name[name]).values())
    assert hashes(by_name["skip"]) == hashes(by_name["skip-2"]) == hashes(by_name["back"])
    assert Manifest.read(by_name["shared"].paths.out).summary["skipped_steps"] == [4]
    assert Manifest.read(by_name["healed"].paths.out).summary["skipped_steps"] == [3]
    assert Manifest.read(by_name["tensors"].paths.out).summary["skipped_steps"] == [4]
