"""Tests of sampling: an image depends on its seed and index only, on any ranks and for repeated runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dithc.core.artifacts import CheckpointStore, Manifest, outputs
from dithc.core.integrity import dump_checksummed, load_checksummed
from dithc.core.logging import UserError
from dithc.data import Tiles, mosaic
from dithc.diffusion import Schedule
from dithc.diffusion import sample as draw
from dithc.engine.comm import Group
from dithc.sample import sample
from dithc.sample.load_network import load_network
from dithc.sample.seeds import generator_of, label_of
from dithc.sample.shards import SHARD_IMAGES
from tests.sample.conftest import images_of, train_small
from tests.train.conftest import SMALL


def test_samples_are_written_with_display_grid_and_manifest(job):
    one = job()
    numbers = sample(one, Group())
    folder = one.out.parent
    assert images_of(one).shape == (6, 4, 8, 8)
    assert images_of(one).dtype == np.float16
    rgb = np.load(folder / "rgb-00000.npy")
    assert (rgb.shape, rgb.dtype) == ((6, 3, 8, 8), np.uint8)
    assert (folder / "grid.png").exists()
    manifest = Manifest.read(one.out, stage="sample")
    assert manifest.verify(folder) == []
    assert manifest.summary == json.loads(json.dumps(numbers))
    assert (numbers["images"], numbers["weights"], numbers["checkpoint"], numbers["step"]) == (6, "ema", "final", 6)
    assert (numbers["guidance_scale"], numbers["guidance_channels"], numbers["steps"]) == (1.5, "all", 4)
    assert {"image_size", "windows", "seam_ratio"}.isdisjoint(numbers)


@pytest.mark.parametrize(
    ("sampler", "channels"), [("ddpm", "all"), ("ddim", "first3"), ("dpm-solver", "all"), ("unipc", "first3")]
)
def test_batch_size_changes_images_only_by_rounding(job, sampler, channels):
    whole, parts = (job(f"b{batch}", batch_size=batch, sampler=sampler, guidance_channels=channels) for batch in (6, 1))
    for one in (whole, parts):
        sample(one, Group())
    # Values have magnitude 1 and are stored as fp16 (unit roundoff 2^-11); earlier fp32 rounding is far smaller.
    assert np.abs(images_of(whole).astype(np.float32) - images_of(parts).astype(np.float32)).max() <= 2 * 2**-11


def test_noise_and_label_depend_only_on_seed_and_index():
    classes = np.arange(10)
    assert torch.equal(torch.randn(5, generator=generator_of(1, 2)), torch.randn(5, generator=generator_of(1, 2)))
    draws = [tuple(torch.randn(3, generator=generator_of(seed, index)).tolist()) for seed in (0, 1) for index in (0, 1)]
    assert len(set(draws)) == 4
    # Recorded values. They must never change, because interrupted sampling runs must continue.
    assert [label_of(0, index, classes) for index in range(12)] == [7, 0, 5, 5, 7, 7, 0, 3, 6, 0, 3, 7]
    assert generator_of(-1, 0).initial_seed() == generator_of(2**64 - 1, 0).initial_seed()


def test_more_images_preserve_existing_shards_and_draw_trained_classes(job):
    few, many = job(num_images=SHARD_IMAGES, steps=1), job(num_images=SHARD_IMAGES + 3, steps=1)
    sample(few, Group())
    assert set(json.loads((few.out.parent / "shard-00000.json").read_text())["labels"]) == {0, 2}
    before = (few.out.parent / "shard-00000.npy").stat().st_mtime_ns
    sample(many, Group())
    assert (few.out.parent / "shard-00000.npy").stat().st_mtime_ns == before
    assert images_of(many).shape[0] == SHARD_IMAGES + 3
    sample(few, Group())
    assert images_of(few).shape[0] == SHARD_IMAGES


@pytest.mark.parametrize("damage", ["cut", "sidecar", "interrupted", "settings"])
def test_damaged_or_mismatched_shard_is_regenerated_and_logged(job, damage, caplog):
    one = job()
    sample(one, Group())
    expected = images_of(one)
    shard, sidecar = one.out.parent / "shard-00000.npy", one.out.parent / "shard-00000.json"
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-7])
    elif damage == "sidecar":
        sidecar.write_text("{")
    elif damage == "interrupted":
        sidecar.unlink()
    else:
        content = json.loads(sidecar.read_text())
        sidecar.write_text(json.dumps(content | {"identity": "other"}))
    sample(one, Group())
    assert "regenerating" in caplog.text
    assert np.array_equal(images_of(one), expected)
    caplog.clear()
    sample(one, Group())
    assert "regenerating" not in caplog.text


@pytest.mark.parametrize(("at", "other", "step"), [("untrained", "start", 0), (6, "final", 6)])
def test_equal_steps_load_equal_networks_and_missing_checkpoint_raises(job, at, other, step):
    model, meta = load_network(job(at=at))
    last, _ = load_network(job(at=other))
    assert meta["step"] == step
    assert all(torch.equal(value, other) for value, other in zip(model.parameters(), last.parameters(), strict=True))
    with pytest.raises(UserError, match="step 3, but its checkpoint was not kept"):
        load_network(job(at=3))


class SomeTiles(Tiles):
    labels = np.arange(9, dtype=np.int32)

    def rows(self, split):
        return np.arange(9 if split == "all" else 1, dtype=np.int64)

    def scaled(self, rows):
        return np.stack([np.random.default_rng(row).uniform(-1, 1, (4, 8, 8)) for row in rows]).astype(np.float32)


def test_codec_evaluation_returns_split_tiles_in_seeded_order(job, monkeypatch):
    monkeypatch.setattr("dithc.sample.pipeline.Tiles", SomeTiles)
    alone = {"checkpoint": None, "latents": None, "at": "codec"}
    one = job("one", num_images=3, **alone)
    numbers = sample(one, Group())
    tiles = SomeTiles(one.tiles.parent)
    drawn = np.random.default_rng(0).permutation(9)
    assert np.array_equal(images_of(one), tiles.scaled(drawn[:3]).astype(np.float16))
    assert numbers["weights_description"] == "reconstructions of real tiles"
    assert "sampler" not in numbers
    assert sample(job("every", num_images=10**6, **alone), Group())["images"] == 9
    assert np.array_equal(images_of(job("every"))[:3], images_of(one))
    with pytest.raises(UserError, match="split val is too small"):
        sample(job("none", real_split="val", **alone), Group())


def test_averaged_and_raw_weights_differ_and_are_recorded(job):
    numbers = [sample(job(weights, weights=weights), Group()) for weights in ("ema", "raw")]
    assert [entry["weights_description"] for entry in numbers] == [
        "averaged weights of step 6",
        "raw weights of step 6",
    ]
    assert not np.array_equal(images_of(job("ema")), images_of(job("raw")))


def test_guidance_on_first3_channels_leaves_the_fourth_unguided(job):
    plain, first3 = (
        job("plain", guidance_scale=1.0, steps=1),
        job("first3", guidance_scale=3.0, guidance_channels="first3", steps=1),
    )
    for one in (plain, first3):
        sample(one, Group())
    # One step of the reverse process: guidance does not affect the fourth channel.
    assert np.allclose(images_of(plain)[:, 3], images_of(first3)[:, 3], atol=2 * 2**-11)
    assert not np.allclose(images_of(plain)[:, :3], images_of(first3)[:, :3], atol=2 * 2**-11)


def test_guidance_moves_away_from_predictions_of_an_early_step(job):
    settings = {"sampler": "unipc", "solver_order": 3, "steps": 5, "num_images": 4}
    one = job(guidance_reference=4, guidance_scale=2.5, **settings)
    numbers = sample(one, Group())
    final, guide = (load_network(job(at=at))[0] for at in ("final", 4))
    y = torch.tensor([label_of(0, index, np.array([0, 2])) for index in range(4)])

    def denoise(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return guide(x, t, y) + 2.5 * (final(x, t, y) - guide(x, t, y))

    noise = [generator_of(0, index) for index in range(4)]
    schedule, settings = Schedule.linear(), {"steps": 5, "order": 3, "clip": 1.0}
    expected = draw("unipc", denoise=denoise, schedule=schedule, shape=(4, 8, 8), noise=noise, **settings)
    assert np.abs(images_of(one).astype(np.float32) - expected.numpy()).max() <= 2 * 2**-11
    assert (numbers["guidance_reference"], numbers["solver_order"], numbers["network_evaluations"]) == (4, 3, 10)


def test_network_evaluations_are_counted_per_image(job):
    kept = {"sampler": "ddim", "steps": 10, "num_images": 3}  # timesteps 0, 111, .., 999
    expected = {
        "plain": (1.0, None, 10),
        "all": (1.5, None, 20),
        "some": (1.5, [0.2, 0.6], 14),
        "none": (1.5, [0.5, 0.51], 10),
    }
    for name, (guidance, interval, evaluations) in expected.items():
        numbers = sample(job(name, guidance_scale=guidance, guidance_interval=interval, **kept), Group())
        assert numbers["network_evaluations"] == evaluations, name
    assert np.array_equal(images_of(job("plain")), images_of(job("none")))
    whole = job("whole", guidance_scale=1.5, guidance_interval=[0.0, 1.0], **kept)
    sample(whole, Group())
    assert np.array_equal(images_of(whole), images_of(job("all")))


def copy_of_run(trained_run, folder) -> tuple[Path, Path]:
    """Return manifest and folder of a copy of the trained run's last checkpoint."""
    store, step = CheckpointStore.of_run(trained_run["checkpoint"])
    copied = Path(shutil.copytree(store.path(step), CheckpointStore(folder / "store").path(step)))
    out = folder / "runs" / "step_0000006.json"
    files = Manifest.entries(out.parent, outputs.files_of(copied))
    numbers = {"step": step, "seconds_per_step_median": 0.5}
    Manifest(stage="train", name="toy", spec={}, summary=numbers, files=files).write(out)
    return out, copied


def test_mismatched_codec_and_damaged_checkpoint_are_rejected(job, trained_run, tmp_path):
    out, copied = copy_of_run(trained_run, tmp_path)
    content = load_checksummed((copied / "checkpoint.json").read_text())
    content["meta"]["codec"] = "kl-vae-of-somebody-else"
    (copied / "checkpoint.json").write_text(dump_checksummed(content))
    with pytest.raises(UserError, match="differs from the codec of the training run"):
        sample(job(checkpoint=out), Group())
    (copied / "ema.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=rf"rerun the workflow: it detects that {out} is incomplete"):
        sample(job(checkpoint=out), Group())


@pytest.mark.parametrize(
    ("other", "message"), [({"classes": 4}, "4 classes"), ({"tiles_digest": "another dataset"}, "made of other tiles")]
)
def test_latents_with_mismatched_classes_or_tiles_are_rejected(job, make_latents, tmp_path, other, message):
    with pytest.raises(UserError, match=message):
        sample(job(latents=make_latents(tmp_path / "other", **other)), Group())


def test_full_disk_keeps_finished_shards(job, monkeypatch):
    from dithc.sample import shards

    few, many = job(num_images=SHARD_IMAGES, steps=1), job(num_images=2 * SHARD_IMAGES, steps=1)
    sample(few, Group())

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shards.np, "save", full)
        with pytest.raises(UserError, match=r"shard 1 could not be written[\s\S]*No space left"):
            sample(many, Group())
    manifest = Manifest.read(few.out)
    assert manifest.verify(few.out.parent) == []


def test_grid_places_images_row_by_row():
    rgb = np.arange(9, dtype=np.uint8).reshape(9, 1, 1, 1) * np.ones((9, 3, 4, 5), np.uint8)
    picture = mosaic(rgb, columns=8)
    assert picture.shape == (2 * 6 - 2, 8 * 7 - 2, 3)
    assert (picture[:4, :5] == 0).all()
    assert (picture[6:, :5] == 8).all()
    assert (picture[6:, 7:] == 255).all()


@pytest.fixture(scope="session")
def flow(trained_run, tmp_path_factory):
    """Return the manifest of a run of 2 steps that predicts velocities."""
    root = tmp_path_factory.mktemp("flow")
    settings = {"model": SMALL | {"learn_sigma": False}, "objective": {"prediction_type": "flow"}}
    return train_small(root, trained_run["latents"], steps=2, checkpoint_every=1, keep_every=1, **settings)


@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_flow_sampling_integrates_the_guided_velocity(job, flow, sampler):
    one = job(checkpoint=flow, sampler=sampler, steps=3, guidance_scale=1.5, weights="raw")
    assert sample(one, Group())["sampler"] == sampler
    model, meta = load_network(one)
    labels = torch.tensor([label_of(0, index, np.array([0, 2])) for index in range(6)])
    x = torch.stack([torch.randn(4, 8, 8, generator=generator_of(0, index)) for index in range(6)])

    def velocity(x: torch.Tensor, time: float) -> torch.Tensor:
        """Return the guided velocity of the image within the range of pixels."""
        halves = [model(x, torch.full((6,), 1000 * time), y) for y in (labels, torch.full((6,), 3))]
        guided = halves[1] + 1.5 * (halves[0] - halves[1])
        return (x - (x - time * guided).clamp(-1, 1)) / time

    with torch.no_grad():
        if sampler == "euler":
            for time in (1, 2 / 3, 1 / 3):
                x = x - velocity(x, time) / 3
        else:
            first = velocity(x, 1)
            x = x - (first + velocity(x - first / 2, 0.5)) / 4
            x = x - velocity(x, 0.5) / 2
    assert meta["objective"]["prediction_type"] == "flow"
    assert np.abs(images_of(one) - x.numpy()).max() <= 2 * 2**-11


def test_flow_guidance_interval_and_reference_set_the_evaluation_count(job, flow):
    kept = {"checkpoint": flow, "sampler": "euler", "steps": 4, "guidance_scale": 1.5, "num_images": 2}
    some = sample(job("some", **kept, guidance_interval=[0.5, 1.0]), Group())  # at times 1000, 750, 500, 250
    assert some["network_evaluations"] == 7
    heun = sample(job("heun", **{**kept, "sampler": "heun", "steps": 3}, guidance_reference=1), Group())
    assert heun["network_evaluations"] == 6


def test_sampler_of_a_mismatched_prediction_type_is_rejected(job, flow):
    with pytest.raises(UserError, match=r"unknown flow sampler[\s\S]*euler or heun"):
        sample(job(checkpoint=flow, sampler="ddim"), Group())
    with pytest.raises(UserError, match=r"unknown sampler[\s\S]*euler"):
        sample(job(sampler="euler"), Group())
