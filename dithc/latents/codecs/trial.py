"""Trial of an external autoencoder before any work: agreement with the configuration and reproducibility.

Legend: n images, b input bands, H, W tile; Z channels of the network, h, w latent.
"""

from typing import Protocol

import torch
from torch import Tensor

from dithc.config import codecs
from dithc.latents.codecs.codec import check_sides
from dithc.latents.codecs.diffusers_networks import DiffusersNetwork
from dithc.latents.codecs.scripted import cause
from dithc.log import UserError, problem

PROBE_PLACES = 4  # side of the latents for the trial of a convolutional network
SAME = 1e-3  # relative to the largest magnitude; rounding differs between batches of one and two


class Network(Protocol):
    """Interface of a codec's network: of diffusers, of a program, or of an installed package."""

    @property
    def bands(self) -> int | None:
        """Number of input bands (b); None for any number."""

    @property
    def has_logvar(self) -> bool:
        """True if encoding returns a log-variance."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return mean and log-variance, float32 (n, Z, h, w), of tiles (n, b, H, W) in [-1, 1]."""

    def decode(self, z: Tensor) -> Tensor:
        """Decode latents (n, Z, h, w) to float32 tiles (n, b, H, W)."""


@torch.no_grad()
def try_network(net: Network, settings: codecs.Foreign, *, seen: int, side: int) -> None:
    """Test both halves on noise: sizes, finite values, and equal results for a tile alone and in a batch."""
    path, factor, channels = settings.named, settings.factor, settings.latent_channels
    if net.bands not in (None, seen):
        raise problem(
            f"number of bands of autoencoder {path} differs from its input",
            got=f"{net.bands} bands",
            expected=f"{seen}, by `bands`",
            fix="set the codec's `bands`: display for three, all for every band, or groups of that size",
        )
    check_sides(path, factor, side, side)
    if isinstance(net, DiffusersNetwork):  # convolutional, so a small tile suffices
        side = min(side, PROBE_PLACES * factor)
    x = torch.rand(2, seen, side, side, generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0  # (2, b, H, W)
    place = side // factor
    try:
        mean, logvar = net.encode(x)
        alone, _ = net.encode(x[:1])
        fits = [one.shape == (2, channels, place, place) for one in (mean, logvar) if one is not None]
        back = net.decode(mean) if all(fits) else None
        back_alone = net.decode(mean[:1]) if all(fits) else None
    except Exception as error:  # a program may raise anything
        raise _misfit(path, got=cause(error), expected=f"tiles {tuple(x.shape)} to be encoded and decoded") from error
    if back is None or back_alone is None:
        raise _misfit(
            path,
            got=f"latents {tuple(mean.shape)} of tiles {tuple(x.shape)}",
            expected=f"(2, {channels}, {place}, {place}), by `latent_channels` {channels} and `factor` {factor}",
        )
    if back.shape != x.shape:
        raise _misfit(path, got=f"decoded tiles {tuple(back.shape)}", expected=tuple(x.shape))
    for what, whole, one in (("encoding", mean, alone), ("decoding", back, back_alone)):
        if not bool(whole.isfinite().all()):
            raise _misfit(path, got=f"NaN or infinity from {what} noise", expected="finite numbers")
        difference = float((whole[:1] - one).abs().max() / whole.abs().max().clamp(min=1e-12))
        if not difference <= SAME:
            raise problem(
                f"{what} a tile with autoencoder {path} depends on the other tiles of its batch, on chance or on earlier calls",
                got=f"{difference:.2g} of the largest magnitude between a tile alone and in a batch",
                expected=f"at most {SAME}",
                fix="export the file in evaluation mode, without dropout or batch statistics, and return the mean of "
                "the posterior (or `moments: mean-logvar`) instead of a sample",
            )


def _misfit(path: str, *, got: object, expected: object) -> UserError:
    return problem(
        f"autoencoder {path} contradicts the configuration",
        got=got,
        expected=expected,
        fix="set the codec's `latent_channels`, `factor` and `bands` to the network's values, or select another file",
    )
