"""Decoders with random weights, and variants of decoding an image with them.

Legend: R ranks; Z latent channels, h, w latent; H, W image.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dithc.bench.environment import require
from dithc.bench.sampling import diffusers_pipeline
from dithc.bench.sampling.runners import SEED
from dithc.bench.sampling.variants import ALL_CORES, BASE, SamplingVariant
from dithc.engine.comm import Group
from dithc.engine.numa import peak_rss_bytes, reset_peak_rss
from dithc.latents import Codec, codecs
from dithc.sample.parallel import ParallelDegrees, SamplingGroup

BANDS = ("R", "G", "B")
INFO: dict[str, Any] = {
    "bands": BANDS,
    "scale": 1.0,
    "offset": 0.0,
    "statistics": [{"low": 0.0, "high": 1.0}] * len(BANDS),
    "display": {"bands": BANDS, "low": 0.0, "high": 1.0},
}  # of the decoded images
LARGEST_FACTOR = 8
WARMUP_ROWS = 2  # latent rows per rank of the image decoded before memory is measured
ROW_PARALLEL, SEPARATE = "by-rows", "apart"
DITHC_SIZES = {"downsampling_factor": 4, "latent_channels": 4, "decoder_blocks": 3}


VARIANTS = (
    SamplingVariant(BASE, "first", "one rank with its cores decodes the image"),
    SamplingVariant(ALL_CORES, "alone", "one process with the cores of all ranks decodes the image"),
    SamplingVariant(
        ROW_PARALLEL,
        "ranks",
        "all ranks decode their rows, with halo rows and the norms of all ranks; the first rank gathers them",
    ),
    SamplingVariant(
        SEPARATE,
        "ranks",
        "for comparison: all ranks decode their rows as separate images without communication; the image differs",
    ),
)


def diffusers_decoder(width: int) -> Codec:
    """Build a decoder with Stable Diffusion's structure."""
    net = codecs.DiffusersAutoencoder(
        _random_network(partial(diffusers_pipeline.autoencoder, width)), memory_format=torch.channels_last
    )
    return codecs.KlCodec(net, INFO, id="sd-vae", scale=1.0, bands=BANDS)


def dithc_decoder(width: int) -> Codec:
    """Build a `kl-vae` of default depth with four times the channels, all at latent resolution."""
    sizes = codecs.autoencoder.Sizes(bands=len(BANDS), hidden_channels=4 * width, **DITHC_SIZES)
    net: codecs.autoencoder.Autoencoder = _random_network(partial(codecs.autoencoder.Autoencoder, sizes))
    return codecs.KlCodec(net, INFO, id="kl-vae", scale=1.0, bands=BANDS)


DECODERS: dict[str, Callable[[int], Codec]] = {"sd-vae": diffusers_decoder, "kl-vae": dithc_decoder}


def _random_network(make: Callable[[], Any]) -> Any:
    """Build a network with equal random weights in every process. Zero-initialized weights would hide faults."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        net = make()
    generator = torch.Generator().manual_seed(SEED)
    for weight in net.requires_grad_(False).parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5, generator=generator)
    return net.eval()


class Decoder:
    """One decoder in one process."""

    def __init__(self, name: str, *, width: int, size: int, group: Group) -> None:
        """Build a decoder of `DECODERS` with `width` channels for a square image of `size` pixels, shared by `group`.

        Raises ImportError without diffusers, and ValueError if ranks cannot share the decoder.
        """
        self._ranks, self._rank = group.size, group.rank
        codec = DECODERS[name](width)
        team = SamplingGroup.of(group, ParallelDegrees(ulysses=group.size), [list(range(group.size))])
        self._single = SamplingGroup().decoding(codec, by_rows=False)
        self._parallel = team.decoding(codec, by_rows=True)
        if self._parallel.obstacle is not None:
            raise ValueError(f"a decoder {self._parallel.obstacle}")
        side = size // codec.downsampling_factor
        self._latent, self._warmup_latent = (
            torch.randn(1, codec.latent_channels, *shape, generator=torch.Generator().manual_seed(SEED))
            for shape in ((side, side), (WARMUP_ROWS * group.size, side))
        )

    def decode(self, variant: str, *, warm: bool = False) -> Tensor:
        """Return the image (1, 3, H, W), or this rank's rows, maybe none; `warm` decodes few rows to load libraries."""
        latent = self._warmup_latent if warm else self._latent
        if variant == ROW_PARALLEL:
            return self._parallel(latent)
        if variant == SEPARATE:
            latent = torch.tensor_split(latent, self._ranks, dim=2)[self._rank]
        return self._single(latent)

    def peak(self, variant: str) -> int | None:
        """Return the peak memory of a decoding above its start, in bytes, or None without kernel support."""
        self.decode(variant, warm=True)
        is_known = reset_peak_rss()
        start = peak_rss_bytes()
        self.decode(variant)
        return peak_rss_bytes() - start if is_known else None


def check(size: int, width: int, *, ranks: int) -> None:
    """Raise UserError if no decoder supports a side or width, or if there are fewer latent rows than ranks."""
    minimum = LARGEST_FACTOR * ranks
    is_valid = size == 0 or (size % LARGEST_FACTOR == 0 and size >= minimum)
    expected = f"0, or a multiple of {LARGEST_FACTOR} from {minimum} on: a row of the latent for each of {ranks} ranks"
    require(is_valid, "bench sampling --decode-size", size, expected)
    is_valid = width >= 1 and width == math.gcd(width, 1 << 12)
    expected = "a power of two up to 4096, such as 32 or Stable Diffusion's 128"
    require(is_valid, "bench sampling --decode-width", width, expected)
