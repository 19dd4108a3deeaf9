"""Tests of decoding on several ranks: one image by rows against the complete decoder, and complete images bitwise."""

import logging
import re

import pytest
import torch
from torch import nn

from dithc.config import codecs
from dithc.core.logging import UserError
from dithc.latents import open_codec
from dithc.sample.parallel.parallel_decoder import ParallelDecoder, _row_group_norm, decoded_rows, unsupported_reason
from dithc.sample.parallel.rank_set import RankSet
from tests.ranks import needs_launcher
from tests.sample.parallel.test_parallel_denoiser import MANY, program_output

INFO = {
    "bands": ["R", "G", "B"],
    "scale": 1.0,
    "offset": 0.0,
    "statistics": [{"low": 0.0, "high": 1.0}] * 3,
    "display": {"bands": ["R", "G", "B"], "low": 0.0, "high": 1.0},
    "size": 16,
}
CODECS = """
import json, pickle, sys
from pathlib import Path
import numpy as np
import torch
from dithc.config import codecs
from dithc.latents import open_codec
from dithc.latents.codecs import KlCodec, autoencoder

def ours(info):
    torch.manual_seed(0)
    net = autoencoder.Autoencoder(autoencoder.Sizes(
        bands=3, downsampling_factor=4, latent_channels=4, hidden_channels=16, decoder_blocks=3))
    for weight in [*net.parameters(), net.mean]:
        torch.nn.init.normal_(weight, std=0.2)  # zero-initialized layers would hide contributions of convolutions
    return KlCodec(net, info, id="kl", scale=0.7, bands=("R", "G", "B"))

def opened(folder, info):
    sd = codecs.SdVaeConfig(kind="sd-vae", path=f"{folder}/sd")
    bands = [["R", "G", "B"], ["B", "G", "G"]]
    foreign = codecs.DiffusersCodecConfig(kind="diffusers", path=f"{folder}/foreign", latent_channels=4,
        downsampling_factor=2, bands=bands)
    return {"kl": ours(info), "sd": open_codec(sd, info=info), "foreign": open_codec(foreign, info=info)}
"""
ALL_CODECS = (
    CODECS
    + """
from dithc import diffusion
from dithc.engine.comm import init_distributed
from dithc.config import evaluations, training
from dithc.model import DiT
from dithc.engine.cost import ParallelDegrees
from dithc.sample.parallel import SamplingGroup, parallel_decoder
from dithc.sample.parallel.rank_set import RankSet
from dithc.sample.parallel.rank_set import cut
from dithc.sample.generate import SINGLE, ImageGenerator

folder, info = pickle.loads(Path(sys.argv[1]).read_bytes())
n = int(sys.argv[2])
parallel_decoder.CHUNK_ELEMENTS = 1000  # several pieces of a map, also of a small one

def far(found, full):
    return None if found is None else ((found - full).abs().max() / full.abs().max()).item()

TEAMS = {
    2: [ParallelDegrees(cfg=2), ParallelDegrees(ulysses=2)],
    3: [ParallelDegrees(ulysses=3)],
    4: [ParallelDegrees(cfg=2, ulysses=2), ParallelDegrees(data=2, ulysses=2)],
}

def sampled(team):
    torch.manual_seed(0)
    model = DiT.from_preset("DiT-S/2", hidden_size=48, num_heads=6, depth=1, num_classes=3, input_size=(8, 6))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    settings = evaluations.EvaluationConfig(run="x", num_images=3, sampler="ddim", steps=2, guidance_scale=2.0, extractor="e")
    objective = diffusion.Objective.of(training.ObjectiveConfig())
    given = dict(evaluation=settings, classes=np.arange(3), objective=objective, bf16=False)
    single = ImageGenerator(model.eval(), ours(info), **given).images(range(3))
    one = ImageGenerator(model, ours(info), **given, team=team, parallel_vae=True)
    decoded = team.gather(one.images(team.local_images(range(3))), range(3))
    return far(decoded, single)

output = {}
with init_distributed(n) as group:
    local = RankSet(group.rank, n, group.split([list(range(n))]))
    for name, codec in opened(folder, info).items():
        z = torch.randn(3, codec.latent_channels, 13, 9, generator=torch.Generator().manual_seed(1))
        z[:, :, :6] *= 3.0  # so that ranks have other statistics
        full, before = parallel_decoder.ParallelDecoder(codec, RankSet())(z), codec.decode(z[:1])

        def by_rows(lengths):
            part = parallel_decoder.decoded_rows(codec, z[:1], local, lengths=lengths)
            factor = full.shape[2] // 13
            return far(local.gather(part, [factor * length for length in lengths], dim=2), full[:1])

        found = {"obstacle": parallel_decoder.unsupported_reason(codec)}
        even, uneven = cut(13, n), [1] * (n - 1) + [14 - n]
        found["rows"] = [by_rows(lengths) for lengths in (even, uneven, uneven[::-1])]
        found["again"] = torch.equal(codec.decode(z[:1]), before)  # no replacement remains
        single = codec.decode(z[:1, :, sum(even[:local.rank]):][:, :, :even[local.rank]])  # a tile
        found["tile"] = far(local.gather(single, [full.shape[2] // 13 * length for length in even], dim=2), full[:1])
        images = {mode: parallel_decoder.ParallelDecoder(codec, local, by_rows=mode)(z) for mode in (True, "auto", False)}
        if group.rank == 0:
            found["images"] = {str(mode): [far(one, real) for one, real in zip(decoded, full, strict=True)]
                               for mode, decoded in images.items()}
        else:
            found["empty"] = [len(decoded) for decoded in images.values()]
        if name == "sd":
            truth = codec.net.net.double().decode(z[:1].double() / codec.scale).sample
            found["truth"] = far(full[:1], truth)
        output[name] = found
    output["sampled"] = {str(degrees): sampled(SamplingGroup.of(group, degrees, [range(n)])) for degrees in TEAMS[n]}
    gathered = group.gather_objects(output)
    if group.rank == 0:
        print("output " + json.dumps(gathered))
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return autoencoders of diffusers: like Stable Diffusion's, and with attention in a block that doubles rows."""
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    networks = tmp_path_factory.mktemp("networks")
    common = {"down_block_types": ("DownEncoderBlock2D",) * 2, "block_out_channels": (8, 16), "norm_num_groups": 4}
    ups = ("AttnUpDecoderBlock2D", "UpDecoderBlock2D")
    for name, settings in {"sd": {}, "foreign": {"up_block_types": ups, "use_post_quant_conv": False}}.items():
        torch.manual_seed(2)
        net = AutoencoderKL(**common, **({"up_block_types": ("UpDecoderBlock2D",) * 2} | settings))
        for weight in net.parameters():
            nn.init.normal_(weight, std=0.3)
        net.save_pretrained(networks / name)
    return networks


@pytest.fixture(scope="module")
def open_codecs(folder):
    scope: dict = {}
    exec(CODECS, scope)
    return scope["opened"](folder, INFO)


@pytest.mark.mpi
@needs_launcher
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=MANY), pytest.param(4, marks=MANY)])
def test_parallel_decoding_matches_the_complete_decoder(ranks, folder, tmp_path) -> None:
    first, *others = program_output(ALL_CODECS, ranks, tmp_path, given=(str(folder), INFO))
    assert len(errors := first.pop("sampled").values()) > 0
    assert max(errors) < 1e-5
    assert all(far is None for one in others for far in one.pop("sampled").values())
    for name, found in first.items():
        assert found["obstacle"] is None
        assert found["again"]
        assert max(found["rows"]) < 1e-5, (name, found)
        assert found.get("truth", 0.0) < 1e-5
        assert found["tile"] > 1e-2, (name, found)
        images, whole = found["images"], 3 - 3 % ranks
        assert max(images["True"]) < 1e-5
        assert images["False"] == [0.0] * 3
        assert images["auto"][:whole] == [0.0] * whole
        assert max(images["auto"]) < 1e-5
    assert all(found["empty"] == [0, 0, 0] for one in others for found in one.values())


def test_single_rank_decoding_matches_the_codec(open_codecs) -> None:
    for codec in open_codecs.values():
        z = torch.randn(2, codec.latent_channels, 5, 3)
        expected = torch.cat([codec.decode(one) for one in z.split(1)])
        for found in (
            ParallelDecoder(codec, RankSet(), by_rows=True)(z),
            decoded_rows(codec, z, RankSet(), lengths=[5]),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_row_group_norm_in_channels_last_matches_float64() -> None:
    norm = nn.GroupNorm(8, 8)
    x = torch.randn(1, 8, 256, 512).add_(0.7).contiguous(memory_format=torch.channels_last)
    expected = nn.functional.group_norm(x.double(), 8)
    assert (_row_group_norm(norm, RankSet())(x) - expected).abs().max() < 2e-6
    assert (norm(x) - expected).abs().max() > 2e-5  # control: if PyTorch's norm becomes exact, a single rank may use it


def test_fewer_latent_rows_than_ranks_are_rejected(open_codecs) -> None:
    with pytest.raises(UserError, match=r"latents of 2 rows for 3 ranks") as refused:
        ParallelDecoder(open_codecs["kl"], RankSet(1, 3), by_rows=True)(torch.zeros(1, 4, 2, 8))
    assert "machine.sampling.parallel_vae" in str(refused.value)


def test_unsupported_decoder_decodes_complete_images_and_logs_the_reason(open_codecs, caplog) -> None:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    pixels = open_codec(codecs.PixelCodecConfig(kind="pixel"), info=INFO)
    with caplog.at_level(logging.INFO, logger="dithc"):
        assert "its decoder layers are not accessible" in str(unsupported_reason(pixels))
        assert ParallelDecoder(pixels, RankSet(0, 2), by_rows=True)._by_rows is False
    assert re.search(r"decode complete images each: pixel-\w+ cannot be partitioned by rows", caplog.text)
    with caplog.at_level(logging.INFO, logger="dithc"):
        caplog.clear()
        assert ParallelDecoder(pixels, RankSet(0, 2), by_rows=False).obstacle == unsupported_reason(pixels)
        assert not caplog.text, "rows were not requested"
    for change in ({"stride": (2, 2)}, {"padding": (0, 0)}, {"dilation": (2, 2)}, {"padding_mode": "reflect"}):
        layer = open_codecs["kl"].net.decoder[0]
        kept = {name: getattr(layer, name) for name in change}
        vars(layer).update(change)
        assert "because layer 0 (Conv2d)" in str(unsupported_reason(open_codecs["kl"]))
        vars(layer).update(kept)
    assert unsupported_reason(open_codecs["kl"]) is None
    net = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, act_fn="gelu")
    kept, open_codecs["sd"].net.net = open_codecs["sd"].net.net, net
    assert "(GELU)" in str(unsupported_reason(open_codecs["sd"]))
    open_codecs["sd"].net.net = kept
