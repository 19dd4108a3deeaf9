"""Tests of scenes: images larger than the tiles of their network, generated in windows and written by rows."""

import numpy as np
import pytest
import torch
from torch import nn

from dithc.core.artifacts import Manifest, outputs
from dithc.core.logging import UserError
from dithc.engine.comm import Group
from dithc.latents.codecs.autoencoder import Autoencoder, Sizes
from dithc.model import DiT
from dithc.sample import pipeline, sample
from dithc.sample.parallel.windows import decode_by_rows
from dithc.sample.pipeline import open_images
from dithc.sample.seeds import BLOCK, generator_of, noise_by_place
from tests.sample.conftest import BANDS, SIDE, TILES_DIGEST

SIZE = 20
SCENE = {"image_size": SIZE, "windows": {"overlap": 0.25}, "num_images": 2, "steps": 3}


@pytest.fixture(autouse=True)
def _heads(monkeypatch):
    """Randomize heads and gates, which are near zero after little training, so that windows would always agree."""
    load = DiT.load_state_dict

    def loaded(self, state, *args, **kwargs):
        load(self, state, *args, **kwargs)
        draws = torch.Generator().manual_seed(3)
        for weight in self.parameters():
            if weight.requires_grad:
                nn.init.normal_(weight, std=0.1, generator=draws)

    monkeypatch.setattr(DiT, "load_state_dict", loaded)


def generated_images(job):
    images, _ = open_images(job, tiles_digest=TILES_DIGEST)
    return images


def shard(job, number=0):
    return np.load(job.out.parent / f"shard-{number:05d}.npy")


@pytest.mark.parametrize("sampler", ["ddpm", "unipc"])
def test_single_window_is_bit_identical_to_plain_sampling(job, sampler, monkeypatch):
    plain = generated_images(job("plain", sampler=sampler, num_images=2))
    scene = generated_images(
        job("scene", sampler=sampler, num_images=2, image_size=SIDE, windows={"overlap": 0.5, "random_shift": True})
    )
    noise = noise_by_place(0, range(2), plain.shape)
    monkeypatch.setattr("dithc.diffusion.samplers.image_noise", lambda generators, shape: noise)
    assert torch.equal(scene.latents(range(2)), plain.latents(range(2)))
    monkeypatch.setattr("dithc.sample.generate.noise_by_place", lambda *_: noise_by_place(1, range(2), plain.shape))
    assert not torch.equal(scene.latents(range(2)), plain.latents(range(2)))  # control: other noise


def test_scene_noise_depends_only_on_seed_image_draw_and_position():
    small, large = (3, BLOCK + 3, BLOCK - 5), (3, 2 * BLOCK + 7, 3 * BLOCK)
    draw, other = noise_by_place(7, [4, 2], large), noise_by_place(7, [2], small)
    values = draw(1)
    assert torch.equal(other(1)[0], values[1, :, : small[1], : small[2]])  # for any size, in any order
    assert torch.equal(draw(1), values)
    unrelated = [
        draw(0),
        noise_by_place(8, [4, 2], large)(1),
        values.flip(0),
        values.roll(BLOCK, 2),
        values.roll(BLOCK, 3),
    ]
    for drawn in unrelated:
        assert abs(float((drawn * values).mean())) < 0.02
    assert abs(float(values.std()) - 1) < 0.01
    assert not torch.equal(values[0, :, :8, :8], torch.randn(3, 8, 8, generator=generator_of(7, 4)))


@pytest.mark.parametrize("shift", [False, True])
def test_scene_shards_contain_one_image_and_manifest_records_seam_ratio(job, shift):
    guide = 4 if shift else None
    one = job(
        "one",
        **SCENE | {"windows": {"overlap": 0.25, "random_shift": shift}},
        guidance_scale=1.5,
        guidance_reference=guide,
    )
    numbers = sample(one, Group())
    assert shard(one).shape == shard(one, 1).shape == (1, BANDS, SIZE, SIZE)
    images = generated_images(one)
    whole = images.images(range(2)).numpy()
    for number in range(2):
        assert np.array_equal(shard(one, number)[0], whole[number].astype(np.float16))
        rgb = np.load(one.out.parent / f"rgb-{number:05d}.npy")
        assert np.array_equal(rgb, images.codec.to_rgb(torch.from_numpy(whole[number : number + 1])))
    assert numbers["image_size"] == SIZE
    assert numbers["windows"] == {"overlap": 0.25, "random_shift": shift}
    assert numbers["shape"] == [BANDS, SIZE, SIZE]
    assert 0.5 < numbers["seam_ratio"] < 2
    manifest = Manifest.read(one.out, stage="sample")
    assert {entry["path"] for entry in manifest.files} >= {
        "shard-00000.npy",
        "rgb-00001.npy",
        "shard-00001.json",
        "grid.png",
    }
    before = (one.out.parent / "shard-00001.npy").stat().st_mtime_ns
    (one.out.parent / "shard-00000.npy").write_bytes(b"altered")
    sample(one, Group())
    assert np.array_equal(shard(one)[0], whole[0].astype(np.float16))
    assert (one.out.parent / "shard-00001.npy").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"image_size": SIZE}, ["20 pixels, with a network of 8 x 8", "with `windows` a larger"]),
        ({"image_size": 4, "windows": {"overlap": 0.5}}, ["4 pixels in windows"]),
    ],
)
def test_unsupported_scene_size_is_rejected_before_sampling(job, changes, messages):
    with pytest.raises(UserError) as error:
        sample(job("x", **changes), Group())
    assert all(message in str(error.value) for message in messages), error.value
    sample(job("own", image_size=SIDE, num_images=2, steps=1), Group())


def test_scene_larger_than_the_disk_is_rejected_before_sampling(job, monkeypatch):
    one = job("one", **SCENE)
    monkeypatch.setattr(pipeline, "free_bytes", lambda folder: 64_000_000)
    monkeypatch.setattr("dithc.sample.generate.ImageGenerator.latents", None)  # must not start
    with pytest.raises(UserError) as error:
        sample(one, Group())
    assert "2 scene(s) of 4 x 20 x 20 are larger than the disk" in str(error.value)
    assert "0.06 GB free" in str(error.value)
    assert len(str(error.value).splitlines()) == 4


def test_full_disk_keeps_finished_scenes(job, monkeypatch):
    one = job("one", **SCENE)
    from dithc.sample import scene_shards

    append, done = scene_shards._Rows.append, []

    def full(self, rows):
        done.append(rows)
        if len(done) > 2:  # one strip of each of the two files of the first scene
            raise OSError(28, "No space left on device")
        append(self, rows)

    monkeypatch.setattr(scene_shards._Rows, "append", full)
    with pytest.raises(UserError, match="shard 1 could not be written"):
        sample(one, Group())
    assert [path.name for path in outputs.files_of(one.out.parent)] == [
        "rgb-00000.npy",
        "shard-00000.json",
        "shard-00000.npy",
    ]


def random_autoencoder(blocks: int) -> Autoencoder:
    torch.manual_seed(0)
    net = Autoencoder(
        Sizes(
            bands=3,
            downsampling_factor=4,
            latent_channels=2,
            hidden_channels=8,
            decoder_blocks=blocks,
        )
    )
    for weight in (*net.parameters(), net.band_change):
        nn.init.normal_(weight, std=0.3)
    return net.eval()


@pytest.mark.parametrize(("blocks", "tile"), [(0, 5), (2, 6), (2, 3)])
def test_tiled_convolutional_decoder_matches_the_complete_decode(blocks, tile):
    net = random_autoencoder(blocks)
    latent = torch.cat([torch.randn(2, 23, 19), torch.zeros(net.sizes.noise_channels, 23, 19)])  # of a sample
    whole = net.decode(latent[None])[0]
    scale = whole.abs().max()

    def of(reach):
        codec = type("Codec", (), {"downsampling_factor": 4, "reach": reach, "decode": staticmethod(net.decode)})
        return torch.cat(list(decode_by_rows(codec, latent, tile=(tile, tile))), dim=1)

    assert (of(net.reach) - whole).abs().max() < 2e-6 * scale
    assert (of(net.reach - 1) - whole).abs().max() > 1e-4 * scale  # control: a reach that is too small by one


def test_tiles_of_a_nonlocal_decoder_blend_smoothly():
    def decode(latent):  # depends on the entire tile
        return latent - latent.mean(dim=(2, 3), keepdim=True) / 2

    codec = type("Codec", (), {"downsampling_factor": 1, "reach": None, "decode": staticmethod(decode)})
    image = torch.cat(list(decode_by_rows(codec, torch.ones(1, 13, 8), tile=(4, 4))), dim=1)
    assert image.shape == (1, 13, 8)
    assert (image - 0.5).abs().max() < 1e-6  # the weights of each pixel over all tiles sum to 1
    ramp = torch.arange(13.0).expand(1, 8, 13)
    steps = torch.cat(list(decode_by_rows(codec, ramp, tile=(4, 4))), dim=1).diff(dim=2)
    assert steps.min() > 0.0
    hard = torch.cat([decode(ramp[None, ..., first : first + 4])[0] for first in range(0, 12, 4)], dim=2)
    assert hard.diff(dim=2).min() < -0.9  # control: tiles without blending


def test_scene_exceeding_memory_is_rejected_before_sampling(job, monkeypatch):
    need = 6 * BANDS * SIZE * SIZE * 4
    for free in (need - 1, need):
        one = job(f"of-{free}", **SCENE)
        monkeypatch.setattr(pipeline, "available_bytes", lambda free=free: free)
        if free == need:
            assert sample(one, Group()) is not None
            continue
        monkeypatch.setattr(pipeline, "_draw_shards", None)  # must not start
        with pytest.raises(UserError, match=r"4 x 20 x 20 latents does not fit in memory\n  got:") as refused:
            sample(one, Group())
        assert "STAGE" not in str(refused.value)
        assert "resources: {sample: {mem_mb}}" in str(refused.value)
        assert not one.out.parent.exists()
        monkeypatch.undo()
