"""Tests of training: the result does not depend on interruptions."""

import dataclasses
import logging
import resource
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dithc.comm import Group
from dithc.log import UserError, read_metrics
from dithc.runs import Lease, Manifest, Store
from dithc.sealed import seal, unseal
from dithc.train import export, train
from dithc.train.job.job import DONE, HELD, STOPPED


def checkpoint(job) -> Store.Checkpoint:
    store, step = Store.of_run(job.out)
    return store.open(step)


def hashes(job) -> dict[str, str]:
    return {entry["path"]: entry["sha256"] for entry in checkpoint(job).files}


@pytest.mark.slow
def test_resumed_training_equals_an_uninterrupted_one_to_the_bit(job):
    whole, first, second = job("whole"), job("parts", until=3), job("parts", until=6)
    assert [train(part, Group()) for part in (whole, first, second)] == [DONE] * 3
    assert hashes(whole) == hashes(second)
    assert Manifest.read(whole.out).digest == Manifest.read(second.out).digest
    losses = [
        [row["loss"] for row in read_metrics(checkpoint(part).folder.parent / "metrics")] for part in (whole, second)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6


@pytest.mark.parametrize("kind", [{"preset": "DiT-S/2"}, {"preset": "ModernDiT-S/2", "qk_norm": True}], ids=str)
@pytest.mark.slow
def test_bf16_with_recomputation_resumes_to_the_bit(job, kind):
    settings = {"dtype": "bf16", "recompute": "block", "micro_batch": 3, "warmup_steps": 4}
    settings |= {"model": {"hidden_size": 32, "depth": 2, "num_heads": 2, **kind}}
    whole, first, second = (job(store, until=until, **settings) for store, until in (("a", 6), ("b", 3), ("b", 6)))
    assert [train(part, Group()) for part in (whole, first, second)] == [DONE] * 3
    assert hashes(whole) == hashes(second)


@pytest.mark.slow
def test_training_learns(job):
    settings = job(until=150, steps=150, lr=2e-3, checkpoint_every=150)
    assert train(settings, Group()) == DONE
    numbers = Manifest.read(settings.out).numbers
    assert numbers["loss_last100"] < 0.97 * numbers["loss_first10"]
    assert (
        0.9 < numbers["initial_loss"] < 1.2
    )  # a network that predicts 0: the variance of the noise, and a small bound


@pytest.mark.slow
def test_micro_batches_change_the_loss_by_rounding_only(job):
    whole, parts = job("whole"), job("parts", micro_batch=3)
    for one in (whole, parts):
        train(one, Group())
    a, b = (read_metrics(checkpoint(one).folder.parent / "metrics") for one in (whole, parts))
    # A sum of 8 losses in another order has 8 roundings; five updates may amplify them, hence a generous factor of 100.
    for left, right in zip(a, b, strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=100 * 8 * 2**-24)


def test_done_training_is_not_repeated(job):
    one = job()
    train(one, Group())
    written = Manifest.read(one.out)
    events = (checkpoint(one).folder.parent / "events.jsonl").read_text()
    one.out.unlink()
    assert train(one, Group()) == DONE
    again = Manifest.read(one.out)
    assert (again.digest, again.numbers) == (written.digest, written.numbers)
    assert (checkpoint(one).folder.parent / "events.jsonl").read_text() == events


@pytest.mark.slow
def test_steps_may_be_raised_later(job):
    first, whole = job("more", until=4, steps=4), job("whole", until=6)
    train(first, Group())
    longer = job("more", until=6, steps=6)
    train(longer, Group())
    train(whole, Group())
    assert hashes(longer) == hashes(whole)
    assert Manifest.read(first.out).verify(first.out.parent) == []  # its checkpoint is pinned


def test_first_step_sees_the_initial_weights_and_the_average_follows(job):
    one = job(until=2)
    train(one, Group())
    store = checkpoint(one).folder.parent
    raw, ema = (load_file(Store(store).open(0).weights(kind)) for kind in ("raw", "ema"))
    assert all(bool((raw[name] == ema[name]).all()) for name in raw)
    raw, ema = (load_file(Store(store).open(2).weights(kind)) for kind in ("raw", "ema"))
    assert any(bool((raw[name] != ema[name]).any()) for name in raw)


def test_checkpoints_kept_are_the_first_the_segment_ends_and_the_last(job):
    one = job(until=12, steps=12, segment=4, checkpoint_every=1, keep_last=2)
    train(one, Group())
    assert Store(checkpoint(one).folder.parent).steps() == [0, 4, 8, 11, 12]


@pytest.mark.slow
def test_checkpoint_cut_in_half_is_passed_over_with_its_reason(job, caplog):
    whole, one = job("whole"), job("cut", until=4)
    train(whole, Group())
    train(one, Group())
    path = checkpoint(one).weights("raw")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    longer = job("cut", until=6)
    assert train(longer, Group()) == DONE
    assert "model.safetensors is truncated or altered" in caplog.text
    assert hashes(longer) == hashes(whole)


def test_held_lease_ends_with_its_own_status(job, monkeypatch):
    one = job(until=2)
    train(one, Group())
    folder = checkpoint(one).folder.parent
    monkeypatch.setattr(Lease.__init__, "__kwdefaults__", {"wait_seconds": 0.0})
    with Lease(folder):
        assert train(job(until=4), Group()) == HELD
    assert train(job(until=4), Group()) == DONE


def test_lost_lease_ends_the_training_before_it_writes(job, monkeypatch):
    monkeypatch.setattr(Lease, "holds", lambda self: self.path.exists() and not list(self.path.parent.glob("step_*2")))
    assert train(job(until=6), Group()) == HELD
    stores = list((job().store).glob("small-*"))
    assert Store(stores[0]).steps() == [0, 2]


def test_lease_lost_while_a_checkpoint_is_written_removes_nothing(job, monkeypatch):
    monkeypatch.setattr(Lease, "holds", lambda self: not list(self.path.parent.glob("step_*4")))
    assert train(job(until=6, checkpoint_every=1, keep_last=1), Group()) == HELD
    assert Store(next((job().store).glob("small-*"))).steps() == [0, 3, 4]


@pytest.mark.slow
def test_other_segments_get_on_where_later_checkpoints_exist(job):
    whole, other = job("whole", segment=3), job("parts", segment=6, checkpoint_every=3)
    for one in (whole, other):
        train(one, Group())
    shorter = job("parts", until=2, segment=2, checkpoint_every=1, keep_last=1, walltime_minutes=0.0)
    assert [train(shorter, Group()) for _ in range(2)] == [STOPPED, DONE]
    assert hashes(other) == hashes(whole)


@pytest.mark.slow
def test_damaged_end_of_a_finished_run_is_trained_again_as_the_fix_says(job):
    one = job()
    train(one, Group())
    found, before = checkpoint(one), hashes(one)
    found.weights("ema").write_bytes(b"")
    with pytest.raises(UserError, match=rf"delete this folder[\s\S]*{one.out}[\s\S]*repeats the last part"):
        export(one.out, weights="ema", layout="safetensors", out=one.out.parent / "weights.safetensors")
    shutil.rmtree(found.folder)
    assert train(one, Group()) == DONE
    assert hashes(one) == before


def test_ranks_leave_when_rank_0_has_written_everything(job, monkeypatch):
    written = []
    one = job()
    monkeypatch.setattr(Group, "barrier", lambda self: written.append(one.out.exists()))
    train(one, Group())
    assert written == [True]


def test_log_and_progress_say_the_epoch(job, caplog):
    caplog.set_level(logging.INFO)
    train(job(), Group())
    assert "step 6/6, epoch 2.0: loss" in caplog.text  # 6 steps of 8 images, 24 images in the dataset
    assert ", epoch 2.0, loss" in caplog.text


@pytest.mark.slow
def test_deadline_stops_after_a_step_and_every_start_gets_on(job):
    one = job(walltime_minutes=0.0)
    statuses = [train(one, Group()) for _ in range(6)]
    assert statuses == [STOPPED] * 5 + [DONE]
    whole = job("whole")
    train(whole, Group())
    assert hashes(one) == hashes(whole)


def test_full_disk_is_an_error_and_earlier_checkpoints_are_intact(job):
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
    store = Store(checkpoint(job(until=2)).folder.parent)
    assert store.steps() == [0, 2]
    assert store.newest() is not None
    assert not list(store.folder.glob(".step_*"))
    assert train(job(until=4), Group()) == DONE


def test_loss_that_is_not_finite_names_step_and_rank_and_saves_nothing(job):
    one = job(clip=None, checkpoint_every=1)
    # a configuration does not accept this value
    one = dataclasses.replace(one, run=one.run.model_copy(update={"lr": 1e30}))
    with pytest.raises(UserError, match=r"at step \d: the loss of rank 0[\s\S]*fix"):
        train(one, Group())
    store = Store(next(one.store.glob("small-*")))
    for step in store.steps():
        assert all(bool(value.isfinite().all()) for value in load_file(store.open(step).weights("raw")).values())


def test_unknown_preset_is_refused(job):
    with pytest.raises(ValueError, match="preset"):
        job(model={"preset": "DiT-Huge/2"})


def test_last_step_beyond_the_configuration_is_refused(job):
    with pytest.raises(UserError, match="raise `steps`"):
        job(until=7)


def test_manifest_of_another_stage_is_refused(job, latents: Path):
    latents.write_text(seal(unseal(latents.read_text()) | {"stage": "tiles"}))
    with pytest.raises(UserError, match="another stage"):
        train(job(), Group())


def test_files_of_the_manifest_are_the_bytes_of_the_checkpoint(job):
    one = job()
    train(one, Group())
    manifest = Manifest.read(one.out, stage="train")
    assert manifest.verify(one.out.parent) == []
    assert {Path(entry["path"]).name for entry in manifest.files} == {
        "model.safetensors",
        "ema.safetensors",
        "optimizer.safetensors",
    }
    numbers = manifest.numbers
    for key in (
        "loss_last100",
        "seconds_per_step_median",
        "images_per_second",
        "peak_rss_bytes",
        "parameters",
        "store",
    ):
        assert numbers[key]
    assert "EMA of decay 0.9999 with warm-up" in numbers["ema_note"]
