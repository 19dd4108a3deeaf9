"""Tests of training: the result does not depend on interruptions."""

import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dithc.config import training
from dithc.core.artifacts import Lease, Manifest
from dithc.core.integrity import dump_checksummed, load_checksummed
from dithc.core.logging import UserError
from dithc.core.processes import HELD, STOPPED
from dithc.diffusion import Objective
from dithc.engine.comm import Group
from dithc.latents import Batches, Latents
from dithc.train import export, train
from dithc.train.job import DONE, StepTimer
from tests.train.conftest import SMALL, checkpoint, hashes, rows, store_of

ONE_OF_EACH = {
    "plain": {},
    "bf16 recomputed": {"dtype": "bf16", "activation_checkpointing": "block", "micro_batch_size": 3, "warmup_steps": 4},
    "modern": {
        "model": SMALL | {"preset": "ModernDiT-S/2", "qk_norm": True},
        "activation_checkpointing": "block",
        "micro_batch_size": 3,
    },
    "betas": {"betas": [0.9, 0.95]},
    "flow": {
        "model": SMALL | {"learn_sigma": False},
        "objective": {"prediction_type": "flow", "timestep_sampling": "logit-normal", "logit_mean": -0.4},
        "lr_schedule": "trapezoid",
        "decay_fraction": 0.5,
    },
    "muon": {"optimizer": {"kind": "muon"}, "dtype": "bf16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_resumed_training_is_bit_identical_to_uninterrupted(job, kind):
    settings = ONE_OF_EACH[kind]
    whole, first, second = (job(store, until=until, **settings) for store, until in (("a", 6), ("b", 3), ("b", 6)))
    assert [train(part, Group()) for part in (whole, first, second)] == [DONE] * 3
    assert hashes(whole) == hashes(second)
    assert Manifest.read(whole.paths.out).digest == Manifest.read(second.paths.out).digest
    found, truth = ([(row["loss"], row["lr"]) for row in rows(part)] for part in (second, whole))
    assert found == truth
    assert len(found) == 6
    assert (found[-1][1] == 0.0) == ("lr_schedule" in settings)


@pytest.mark.slow
def test_training_reduces_the_mean_loss(job):
    settings = job(until=150, steps=150, lr=2e-3, checkpoint_every=150)
    assert train(settings, Group()) == DONE
    numbers = Manifest.read(settings.paths.out).summary
    assert numbers["mean_loss_last_100"] < 0.97 * numbers["mean_loss_first_10"]
    # A network that predicts 0 has the variance of the noise, and a small bound.
    assert 0.9 < numbers["initial_loss"] < 1.2


def test_completed_training_is_not_repeated(job):
    one = job()
    train(one, Group())
    written = Manifest.read(one.paths.out)
    events = (store_of(one).folder / "events.jsonl").read_text()
    one.paths.out.unlink()
    assert train(one, Group()) == DONE
    again = Manifest.read(one.paths.out)
    assert (again.digest, again.summary) == (written.digest, written.summary)
    assert (store_of(one).folder / "events.jsonl").read_text() == events


@pytest.mark.slow
def test_raising_steps_later_equals_the_uninterrupted_run(job):
    first, whole = job("more", until=4, steps=4), job("whole", until=6)
    train(first, Group())
    longer = job("more", until=6, steps=6)
    train(longer, Group())
    train(whole, Group())
    assert hashes(longer) == hashes(whole)
    assert Manifest.read(first.paths.out).verify(first.paths.out.parent) == []  # its checkpoint is pinned


def test_ema_equals_raw_weights_only_at_step_zero(job):
    one = job(until=2)
    train(one, Group())
    for step in (0, 2):
        raw, ema = (load_file(store_of(one).open(step).weights(kind)) for kind in ("raw", "ema"))
        assert all(torch.equal(raw[name], ema[name]) for name in raw) == (step == 0)


@pytest.mark.parametrize(("predict", "times"), [("noise", "uniform"), ("flow", "logit-normal")])
def test_initial_mse_equals_the_target_power_and_objective_is_stored(job, predict, times):
    """The network begins by predicting 0."""
    kind = {"prediction_type": predict, "timestep_sampling": times}
    one = job(until=1, model=SMALL | {"learn_sigma": False}, objective=kind)
    train(one, Group())
    objective = Objective.of(training.ObjectiveConfig(**kind))
    settings = {"seed": 0, "global_batch_size": 8, "label_dropout": 0.1, "augment": "mirror"}
    batch = Batches(Latents(one.paths.latents.parent), **settings, times=objective.times).batch(0)
    x0, noise = (part.double().numpy() for part in (batch.x, batch.noise))
    target = {"noise": noise, "flow": noise - x0}[predict]
    assert rows(one)[0]["mse"] == pytest.approx((target**2).mean(), rel=1e-5)
    objective_values = checkpoint(one).meta["objective"]
    assert training.ObjectiveConfig(**objective_values) == one.run.objective
    assert objective_values["prediction_type"] == predict


def test_kept_checkpoints_are_the_first_segment_ends_and_latest(job):
    one = job(until=12, steps=12, steps_per_job=4, checkpoint_every=1, keep_last=2)
    train(one, Group())
    assert store_of(one).steps() == [0, 4, 8, 11, 12]


@pytest.mark.slow
def test_expected_failures_add_checkpoints_without_changing_the_result(job, monkeypatch):
    monkeypatch.setattr(StepTimer, "save_interval", lambda self, failure_seconds: 0.0)  # the steps take milliseconds
    plain = job("plain", checkpoint_every=6)
    early = job("early", checkpoint_every=6, keep_last=6, hours_between_failures=1e-6)
    assert train(plain, Group()) == train(early, Group()) == 0
    assert store_of(plain).steps() == [0, 6]
    assert len(store_of(early).steps()) > 2
    assert hashes(early) == hashes(plain)


def test_truncated_checkpoint_is_skipped_with_a_logged_reason(job, caplog):
    whole, one = job("whole"), job("cut", until=4)
    train(whole, Group())
    train(one, Group())
    path = checkpoint(one).weights("raw")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    longer = job("cut", until=6)
    assert train(longer, Group()) == DONE
    assert "model.safetensors is truncated or altered" in caplog.text
    assert hashes(longer) == hashes(whole)


def test_training_with_a_held_lease_returns_the_held_status(job, monkeypatch):
    one = job(until=2)
    train(one, Group())
    folder = store_of(one).folder
    monkeypatch.setattr(Lease.__init__, "__kwdefaults__", {"wait_seconds": 0.0})
    with Lease(folder):
        assert train(job(until=4), Group()) == HELD
    assert train(job(until=4), Group()) == DONE


@pytest.mark.parametrize(
    ("lost", "settings", "kept"),
    [
        ("step_*2", {}, [0, 2]),
        (".step_0000004*", {}, [0, 2]),
        ("step_*4", {"checkpoint_every": 1, "keep_last": 1}, [0, 3, 4]),
    ],
    ids=["before a checkpoint", "before the commit", "before the removal of old ones"],
)
def test_lost_lease_ends_training_before_checkpoint_changes(job, monkeypatch, lost, settings, kept):
    monkeypatch.setattr(Lease, "holds", lambda self: not list(self.path.parent.glob(lost)))
    one = job(**settings)
    assert train(one, Group()) == HELD
    assert store_of(one).steps() == kept


@pytest.mark.slow
def test_deleting_a_damaged_final_checkpoint_retrains_the_last_part(job):
    one = job()
    train(one, Group())
    found, before = checkpoint(one), hashes(one)
    found.weights("ema").write_bytes(b"")
    with pytest.raises(UserError, match=rf"delete this folder[\s\S]*{one.paths.out}[\s\S]*repeats the last part"):
        export(one.paths.out, weights="ema", layout="safetensors", out=one.paths.out.parent / "weights.safetensors")
    shutil.rmtree(found.folder)
    assert train(one, Group()) == DONE
    assert hashes(one) == before


def test_final_barrier_follows_the_manifest_of_rank_0(job, monkeypatch):
    written = []
    one = job()
    monkeypatch.setattr(Group, "barrier", lambda self: written.append(one.paths.out.exists()))
    train(one, Group())
    assert written == [True]


@pytest.mark.slow
def test_expired_walltime_stops_after_a_step_and_each_restart_advances(job):
    one = job(walltime_minutes=0.0)
    statuses = [train(one, Group()) for _ in range(6)]
    assert statuses == [STOPPED] * 5 + [DONE]
    whole = job("whole")
    train(whole, Group())
    assert hashes(one) == hashes(whole)


def test_full_disk_raises_user_error_and_preserves_earlier_checkpoints(job):
    train(job(until=2), Group())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # the kernel rejects longer files, like a full disk
    try:
        with pytest.raises(
            UserError, match=r"step 4 could not be written[\s\S]*rank 0: .*too large: .*model.safetensors"
        ):
            train(job(until=4), Group())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    store = store_of(job(until=2))
    assert store.steps() == [0, 2]
    assert store.newest() is not None
    assert not list(store.folder.glob(".step_*"))
    assert train(job(until=4), Group()) == DONE


def test_last_step_beyond_the_configured_steps_is_rejected(job):
    with pytest.raises(UserError, match="raise `steps`"):
        job(until=7)


def test_manifest_of_a_different_stage_is_rejected(job, latents: Path):
    latents.write_text(dump_checksummed(load_checksummed(latents.read_text()) | {"stage": "tiles"}))
    with pytest.raises(UserError, match="another stage"):
        train(job(), Group())


def test_manifest_lists_and_verifies_the_checkpoint_files(job):
    one = job()
    train(one, Group())
    manifest = Manifest.read(one.paths.out, stage="train")
    assert manifest.verify(one.paths.out.parent) == []
    assert {Path(entry["path"]).name for entry in manifest.files} == {
        "model.safetensors",
        "ema.safetensors",
        "optimizer.safetensors",
    }
    numbers = manifest.summary
    for key in (
        "mean_loss_last_100",
        "seconds_per_step_median",
        "images_per_second",
        "peak_rss_bytes",
        "parameters",
        "checkpoint_folder",
    ):
        assert numbers[key]
    assert "EMA of decay 0.9999 with warm-up" in numbers["ema_note"]
