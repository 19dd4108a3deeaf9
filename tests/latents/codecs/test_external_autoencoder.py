"""Tests of external autoencoders against direct calls of their libraries, and of errors before any work."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dithc.config import codecs
from dithc.core.logging import UserError
from dithc.latents import Latents, open_codec
from dithc.latents.codecs.diffusers_autoencoder import CLASSES
from dithc.latents.encode import encode_tiles

FEW = torch.Generator().manual_seed(3)
X = torch.rand(3, 4, 16, 16, generator=FEW) * 2 - 1
RGB = X[:, :3].contiguous()
LEVELS = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 4,
}
KL = {**LEVELS, "block_out_channels": (8, 8)}
TINY = {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8)}
TINY |= {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
DC = {f"{half}_block_types": ("ResBlock", "EfficientViTBlock") for half in ("encoder", "decoder")}
DC |= {f"{half}_block_out_channels": (8, 8) for half in ("encoder", "decoder")}
DC |= {f"{half}_layers_per_block": (1, 1) for half in ("encoder", "decoder")}
DC |= {f"{half}_qkv_multiscales": ((), (5,)) for half in ("encoder", "decoder")}
HUNYUAN = {"in_channels": 3, "out_channels": 3, "latent_channels": 8, "block_out_channels": (32, 32)}
HUNYUAN |= {"layers_per_block": 1, "spatial_compression_ratio": 2, "sample_size": 16}

# Class, settings, latent channels, and the shift and scale of the diffusers pipelines.
NETWORKS: dict[str, tuple[str, dict[str, Any], int, Any, Any]] = {
    "as Stable Diffusion": ("AutoencoderKL", KL, 4, 0.0, 0.18215),
    "as FLUX": (
        "AutoencoderKL",
        KL | {"latent_channels": 16, "scaling_factor": 0.3611, "shift_factor": 0.1159},
        16,
        0.1159,
        0.3611,
    ),
    "by channel": (
        "AutoencoderKL",
        KL | {"scaling_factor": 0.5, "latents_mean": (0.1, 0.2, -0.3, 0.4), "latents_std": (1.0, 2.0, 4.0, 0.5)},
        4,
        torch.tensor([0.1, 0.2, -0.3, 0.4]).view(-1, 1, 1),
        torch.tensor([0.5, 0.25, 0.125, 1.0]).view(-1, 1, 1),
    ),
    "32 channels": ("AutoencoderTiny", TINY | {"latent_channels": 32}, 32, 0.0, 1.0),
    "DC": (
        "AutoencoderDC",
        DC | {"latent_channels": 8, "attention_head_dim": 4, "scaling_factor": 0.41407},
        8,
        0.0,
        0.41407,
    ),
    "asymmetric": (
        "AsymmetricAutoencoderKL",
        LEVELS | {"down_block_out_channels": (8, 8), "up_block_out_channels": (8, 8)},
        4,
        0.0,
        0.18215,
    ),
    "as HunyuanImage": ("AutoencoderKLHunyuanImage", HUNYUAN | {"scaling_factor": 0.75289}, 8, 0.0, 0.75289),
    "codes": ("VQModel", KL | {"latent_channels": 5, "vq_embed_dim": 3}, 3, 0.0, 0.18215),
}


def network(name: str, **settings: Any) -> Any:
    """Return a diffusers autoencoder with random weights."""
    import diffusers

    torch.manual_seed(0)
    return getattr(diffusers, name)(**settings).eval().requires_grad_(False)  # also selects kernels


def save_network(folder: Path, name: str = "AutoencoderKL", **settings: Any) -> tuple[Any, Path]:
    net = network(name, **(settings or KL))
    net.save_pretrained(folder / "net")
    return net, folder / "net"


def diffusers(
    path: Path, latent_channels: int = 4, downsampling_factor: int = 2, **settings: Any
) -> codecs.DiffusersCodecConfig:
    return codecs.DiffusersCodecConfig(
        kind="diffusers",
        path=str(path),
        latent_channels=latent_channels,
        downsampling_factor=downsampling_factor,
        **settings,
    )


def encoder_moments(net: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return mean and log-variance as computed by the library."""
    found = net.encode(x)
    if hasattr(found, "latent_dist"):
        return found.latent_dist.mean, found.latent_dist.logvar
    return found[0], None


# diffusers


@pytest.mark.parametrize("kind", NETWORKS)
@torch.no_grad()
def test_latents_and_images_equal_diffusers_bit_for_bit(fake_tiles, tmp_path, kind) -> None:
    name, settings, channels, shift, scale = NETWORKS[kind]
    net, path = save_network(tmp_path, name, **settings)
    codec = open_codec(diffusers(path, channels), info=fake_tiles().info)
    mean, logvar = codec.encode(RGB)
    z, spread = encoder_moments(net, RGB)
    assert torch.equal(mean, (z - shift) * torch.as_tensor(scale))
    assert codec.has_logvar == (logvar is not None) == (spread is not None)
    if logvar is not None:  # the deviation is scaled like the mean
        torch.testing.assert_close(logvar.exp().sqrt(), spread.exp().sqrt() * scale, rtol=1e-5, atol=0)
    stored = (mean / torch.as_tensor(scale) + shift).contiguous()
    assert torch.equal(codec.decode(mean), net.decode(stored).sample)
    assert (codec.latent_channels, codec.downsampling_factor, codec.scale, codec.bound) == (channels, 2, 1.0, None)


def test_every_supported_diffusers_class_is_covered_by_a_test() -> None:
    assert {name for name, *_ in NETWORKS.values()} | {"AutoencoderKLFlux2"} == set(CLASSES)


@torch.no_grad()
def test_flux2_latents_are_normalized_by_batch_norm_statistics(fake_tiles, tmp_path) -> None:
    """Use latents with these statistics at each of the four places of 2 x 2 patches, over all places of a channel."""
    net = network("AutoencoderKLFlux2", **KL, latent_channels=6, layers_per_block=1, batch_norm_eps=0.0)
    net.bn.running_mean.copy_(torch.randn(24, generator=FEW))
    net.bn.running_var.copy_(torch.rand(24, generator=FEW) + 0.5)
    net.save_pretrained(tmp_path)
    mean, std = (values.view(6, 2, 2) for values in (net.bn.running_mean, net.bn.running_var.sqrt()))
    z = torch.stack([mean + std, mean - std]).double()  # (2, Z, 2, 2)
    codec = open_codec(diffusers(tmp_path, 6), info=fake_tiles().info)
    raw, _ = encoder_moments(net, RGB)
    middle, spread = z.mean(dim=(0, 2, 3)).view(-1, 1, 1), z.std(dim=(0, 2, 3), correction=0).view(-1, 1, 1)
    torch.testing.assert_close(codec.encode(RGB)[0].double(), (raw.double() - middle) / spread, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_autoencoder_with_all_bands_reads_bands_in_source_order(fake_tiles, tmp_path) -> None:
    tiles = fake_tiles()
    net, path = save_network(tmp_path, **KL, in_channels=4, out_channels=4)
    codec = open_codec(diffusers(path, bands="all"), info=tiles.info)
    x = codec.input(tiles, np.arange(2))
    assert codec.bands == ("B02", "B03", "B04", "B08")
    assert np.array_equal(x.numpy(), tiles.scaled(np.arange(2)))
    assert torch.equal(codec.encode(x)[0], net.encode(x).latent_dist.mean * 0.18215)
    assert np.array_equal(codec.to_rgb(x), tiles.rgb(np.arange(2)))
    assert not codec.id.startswith("diffusers-display-")


@torch.no_grad()
def test_band_groups_are_stacked_and_repeated_bands_are_averaged(fake_tiles, tmp_path) -> None:
    net, path = save_network(tmp_path)
    groups = [["B04", "B03", "B02"], ["B08", "B04", "B03"]]
    codec = open_codec(diffusers(path, bands=groups), info=fake_tiles().info)
    mean, logvar = codec.encode(X)
    one, other = X[:, [2, 1, 0]], X[:, [3, 2, 1]]
    z = torch.cat([encoder_moments(net, part)[0] for part in (one, other)], dim=1) * 0.18215
    torch.testing.assert_close(mean, z, rtol=1e-5, atol=1e-6)  # a batch of all groups rounds differently
    assert logvar is not None
    assert (codec.latent_channels, mean.shape, logvar.shape) == (8, (3, 8, 8, 8), (3, 8, 8, 8))
    first, second = (net.decode(part / 0.18215).sample for part in mean.chunk(2, dim=1))  # (3, 3, 16, 16) each
    expected = torch.stack(
        [first[:, 2], (first[:, 1] + second[:, 2]) / 2, (first[:, 0] + second[:, 1]) / 2, second[:, 0]], 1
    )
    torch.testing.assert_close(codec.decode(mean), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_id_depends_on_scale_and_shift_but_not_on_the_path(fake_tiles, tmp_path) -> None:
    info, path = fake_tiles().info, save_network(tmp_path)[1]
    renamed = tmp_path / "moved"
    ids = [
        open_codec(diffusers(path, **one), info=info).id for one in ({}, {"scaling_factor": 0.2}, {"shift_factor": 0.1})
    ]
    path.rename(renamed)
    assert open_codec(diffusers(renamed), info=info).id == ids[0]
    assert len(set(ids)) == 3


# programs


class Halves(nn.Module):
    """Small autoencoder of images in 0 to 1 with both methods, as in typical scripted models."""

    def __init__(self, *, fault: str = "", stacked: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = nn.Conv2d(3, 16, 2, stride=2), nn.ConvTranspose2d(8, 3, 2, stride=2)
        self.fault, self.stacked, self.calls = fault, stacked, 0
        self.norm = nn.BatchNorm2d(3)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.fault == "state":
            x = x + self.calls
        if self.fault == "chance":
            x = x + torch.rand_like(x)
        if self.fault == "batch":
            x = x - x.mean()
        if self.fault == "nan":
            x = x / 0.0 - x / 0.0
        if self.fault == "raises":
            assert x.shape[0] == 7, "seven tiles only"
        encoder_moments = self.down(x)
        return encoder_moments if self.stacked else encoder_moments[:, :8]

    @torch.jit.export
    def decode(self, z: Tensor) -> Tensor:
        out = self.up(z)
        return out[:, :, 1:] if self.fault == "cut" else out

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Half(nn.Module):
    """One half, with a method of the complete autoencoder as `forward`."""

    def __init__(self, whole: Halves, *, encodes: bool) -> None:
        super().__init__()
        self.down, self.up, self.encodes = whole.down, whole.up, encodes

    def forward(self, x: Tensor) -> Tensor:
        return self.down(x)[:, :8] if self.encodes else self.up(x)


def script(
    path: Path, latent_channels: int = 8, downsampling_factor: int = 2, **settings: Any
) -> codecs.TorchScriptCodecConfig:
    message = {"scaling_factor": 1.0, "trust_code": True, "low": 0.0} | settings
    return codecs.TorchScriptCodecConfig(
        kind="torchscript",
        path=str(path),
        latent_channels=latent_channels,
        downsampling_factor=downsampling_factor,
        **message,
    )


def save_program(folder: Path, layout: str = "one", **settings: Any) -> tuple[Halves, Path]:
    """Return the network, and the file or folder of its program."""
    net = Halves(**settings).eval()
    if layout == "one":
        torch.jit.script(net).save(str(folder / "net.pt"))
        return net, folder / "net.pt"
    examples = {"encoder": torch.rand(2, 3, 16, 16), "decoder": torch.rand(2, 8, 8, 8)}
    for name, example in examples.items():
        half = Half(net, encodes=name == "encoder").eval()
        if layout == "pt":
            torch.jit.trace(half, example).save(str(folder / f"{name}.pt"))
        else:
            batch = {"x": {0: torch.export.Dim("batch", min=1, max=1 << 16)}}
            torch.export.save(torch.export.export(half, (example,), dynamic_shapes=batch), folder / f"{name}.pt2")
    return net, folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("layout", ["one", "pt", "pt2"])
@torch.no_grad()
def test_program_is_called_with_tiles_in_the_configured_range(fake_tiles, tmp_path, layout) -> None:
    net, path = save_program(tmp_path, layout)
    codec = open_codec(script(path, shift_factor=0.25, scaling_factor=2.0), info=fake_tiles().info)
    mean, logvar = codec.encode(RGB)
    torch.testing.assert_close(mean, (net.encode((RGB + 1) / 2) - 0.25) * 2, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(codec.decode(mean), net.decode(mean / 2 + 0.25) * 2 - 1, rtol=1e-6, atol=1e-6)
    assert logvar is None
    assert codec.id.startswith("torchscript-display-")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@torch.no_grad()
def test_program_output_is_split_into_mean_and_logvar(fake_tiles, tmp_path) -> None:
    net, path = save_program(tmp_path, stacked=True)
    mean, logvar = open_codec(script(path, moments="mean-logvar"), info=fake_tiles().info).encode(RGB)
    both = net.encode((RGB + 1) / 2)
    torch.testing.assert_close(torch.cat([mean, logvar], dim=1), both, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fault", ["state", "chance", "batch", "nan", "raises", "cut"])
def test_faulty_program_is_rejected_on_opening(fake_tiles, tmp_path, fault) -> None:
    path = save_program(tmp_path, fault=fault)[1]
    message = {
        "nan": "NaN or infinity from encoding",
        "raises": "seven tiles only",
        "cut": r"decoded tiles \(2, 3, 15, 16\)",
    }
    with pytest.raises(
        UserError, match=message.get(fault, "on the other tiles of its batch, on chance or on earlier calls")
    ):
        open_codec(script(path), info=fake_tiles().info)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_incomplete_missing_or_damaged_program_is_rejected(fake_tiles, tmp_path) -> None:
    info = fake_tiles().info
    torch.jit.script(nn.Conv2d(3, 8, 2)).save(str(tmp_path / "one.pt"))
    with pytest.raises(UserError, match=r"without encode and decode[\s\S]*encoder.pt2"):
        open_codec(script(tmp_path / "one.pt"), info=info)
    with pytest.raises(UserError, match="no such file or folder"):
        open_codec(script(tmp_path / "absent.pt"), info=info)
    with pytest.raises(UserError, match="a folder without these files"):
        open_codec(script(tmp_path), info=info)
    for name in ("encoder", "decoder"):
        (tmp_path / f"{name}.pt2").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(UserError, match=r"encoder.pt2 cannot be read[\s\S]*again"):
        open_codec(script(tmp_path), info=info)


# rejected settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"latent_channels": 16}, r"latents \(2, 4, 4, 4\)[\s\S]*`latent_channels` 16"),
        ({"downsampling_factor": 4}, r"latents \(2, 4, 8, 8\)[\s\S]*`downsampling_factor` 4"),
        ({"downsampling_factor": 3}, "multiples of 3"),
        ({"bands": "all"}, r"3 bands[\s\S]*4, by `bands`"),
        ({"bands": [["B02", "B03"], ["B04", "B08"]]}, r"3 bands[\s\S]*2, by `bands`"),
        ({"bands": [["B02", "B03", "B04"]]}, r"lacks B08[\s\S]*source.bands"),
        ({"bands": [["B02", "B03", "B04"], ["B08", "B12", "B11"]]}, "has B11, B12"),
    ],
    ids=str,
)
def test_settings_that_contradict_the_network_are_rejected_on_opening(fake_tiles, tmp_path, settings, message) -> None:
    with pytest.raises(UserError, match=message):
        open_codec(diffusers(save_network(tmp_path)[1], **settings), info=fake_tiles().info)


def test_codec_without_a_scaling_factor_is_rejected(fake_tiles, tmp_path) -> None:
    path = save_network(tmp_path, "AutoencoderKLHunyuanImage", **HUNYUAN)[1]
    with pytest.raises(UserError, match=r"is unknown[\s\S]*set the codec's `scaling_factor`"):
        open_codec(diffusers(path, 8), info=fake_tiles().info)
    assert open_codec(diffusers(path, 8, scaling_factor=0.75), info=fake_tiles().info).latent_channels == 8


def test_video_autoencoder_and_pickle_weights_are_rejected(fake_tiles, tmp_path) -> None:
    path = save_network(tmp_path)[1]
    config = path / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"AutoencoderKL"', '"AutoencoderKLWan"'))
    with pytest.raises(UserError, match=r"describes 'AutoencoderKLWan'[\s\S]*AutoencoderDC"):
        open_codec(diffusers(path), info=fake_tiles().info)
    config.write_text(text)
    weights = path / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(UserError, match=r"diffusion_pytorch_model.*no such file"):
        open_codec(diffusers(path), info=fake_tiles().info)


@pytest.mark.parametrize(
    ("codec", "settings", "message"),
    [
        (diffusers, {"bands": [["B02", "B03", "B04"], ["B08"]]}, "groups of 1 and 3 bands"),
        (diffusers, {"scaling_factor": [1.0, 2.0]}, "`scaling_factor` has 2 numbers: set one, or 4, one per channel"),
        (diffusers, {"shift_factor": [0.0] * 5, "bands": [["B02"], ["B03"]]}, "has 5 numbers: set one, or 4 or 8"),
        (diffusers, {"scaling_factor": 0.0}, "greater than or equal to"),
        (script, {"trust_code": False}, "trust_code: true"),
        (script, {"high": 0.0}, "not below"),
        (script, {"scaling_factor": None}, "scaling_factor"),
    ],
)
def test_invalid_codec_settings_are_rejected_on_validation(tmp_path, codec, settings, message) -> None:
    with pytest.raises(ValidationError, match=message):
        codec(tmp_path, **settings)


# datasets


def test_stored_latents_without_logvar_equal_the_codec_output(fake_tiles, tmp_path) -> None:
    tiles = fake_tiles(count=6)
    path = save_network(tmp_path, "AutoencoderTiny", **TINY, latent_channels=32)[1]
    codec = open_codec(diffusers(path, 32, scaling_factor=30.0), info=tiles.info)
    encode_tiles(tiles, codec, tmp_path / "latents", tiles_digest="a", batch=4)
    latents = Latents(tmp_path / "latents", codec_id=codec.id)
    expected, _ = codec.encode(codec.input(tiles, np.arange(6)))
    assert (latents.shape, latents.has_logvar, latents.scale) == ((32, 8, 8), False, 1.0)
    torch.testing.assert_close(torch.from_numpy(latents.moments(np.arange(6))).float(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("groups", ["display", [["B04", "B03", "B02"], ["B08", "B03", "B02"]]], ids=["one", "two"])
def test_latents_without_unit_variance_are_logged_with_correct_scale(fake_tiles, tmp_path, caplog, groups) -> None:
    tiles, path = fake_tiles(count=12), save_network(tmp_path, **KL, scaling_factor=0.001)[1]
    open_codec(diffusers(path, bands=groups), info=tiles.info).check_tiles(tiles)
    shift, scale = (
        [float(value) for value in found.split(",")] for found in re.findall(r"`s\w+: \[([^\]]*)\]`", caplog.text)
    )
    caplog.clear()
    codec = open_codec(diffusers(path, bands=groups, shift_factor=shift, scaling_factor=scale), info=tiles.info)
    codec.check_tiles(tiles)
    assert not caplog.records
    mean, logvar = codec.encode(codec.input(tiles, np.arange(12)))
    assert logvar is not None
    torch.testing.assert_close(mean.mean(dim=(0, 2, 3)), torch.zeros(len(shift)), rtol=0, atol=0.01)
    variance = mean.var(dim=(0, 2, 3), correction=0) + logvar.exp().mean(dim=(0, 2, 3))
    torch.testing.assert_close(variance, torch.ones(len(shift)), rtol=0.01, atol=0)


def test_latents_beyond_fp16_range_are_rejected_before_writing(fake_tiles, tmp_path) -> None:
    tiles = fake_tiles()
    codec = open_codec(diffusers(save_network(tmp_path)[1], scaling_factor=1e6), info=tiles.info)
    with pytest.raises(UserError, match=r"largest magnitude[\s\S]*`shift_factor: \["):
        encode_tiles(tiles, codec, tmp_path / "latents", tiles_digest="a")
    assert not (tmp_path / "latents").exists()


@pytest.mark.slow
def test_sharded_weights_with_wrapper_prefixes_load_the_same_codec(tmp_path: Path, fake_tiles) -> None:
    net, path = save_network(tmp_path)
    codec = open_codec(diffusers(path, bands="display"), info=fake_tiles().info)
    net.save_pretrained(tmp_path / "shards", max_shard_size="3KB")
    assert len(list((tmp_path / "shards").glob("*-of-*.safetensors"))) > 1
    for file in (tmp_path / "shards").glob("*.safetensors"):
        save_file({f"module._orig_mod.{name}": value for name, value in load_file(file).items()}, file)
    for index in (True, False):
        other = open_codec(diffusers(tmp_path / "shards", bands="display"), info=fake_tiles().info)
        assert torch.equal(codec.encode(RGB)[0], other.encode(RGB)[0])
        if index:
            (tmp_path / "shards" / "diffusion_pytorch_model.safetensors.index.json").unlink()
