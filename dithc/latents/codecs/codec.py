"""Common interface of codecs: conversion of tiles to latents and back with any network.

Legend: N batch, C bands of the codec, H, W tile; Z latent channels, h, w latent (H, W divided by the factor).
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dithc.core.artifacts import digest
from dithc.core.logging import user_error
from dithc.data import BandScaling, Rows, Tiles
from dithc.latents.codecs.autoencoder import Autoencoder
from dithc.latents.codecs.diffusers_autoencoder import DiffusersAutoencoder

CODEC_FILE = "codec.json"
LARGEST_FP16 = 65504.0
Network = Autoencoder | DiffusersAutoencoder


class Codec(ABC):
    """Conversion of tiles to latents and back.

    Args:
        info: Content of dataset.json.
    """

    id: str  # Type and 12 hex digits of all settings that affect latents; stored with latents and checkpoints
    bands: tuple[str, ...]  # Names of the bands that `input` and `decode` return
    latent_channels: int  # Z
    downsampling_factor: int  # Side of a tile over side of its latent
    scale: float  # Factor that gives latents about unit variance; `decode` expects scaled latents
    has_logvar: bool  # Whether `encode` returns a log-variance
    keeps_pixels = False  # Whether a latent consists of the pixels of the tile
    bound: float | None = None  # Maximum magnitude of scaled latents; None if unbounded
    reach: int | None = None  # Radius in latent pixels on which a decoded pixel depends; None for the entire latent
    noise_channels = 0  # Channels of noise after a latent that select a sample of the decoder's distribution

    def __init__(self, info: dict[str, Any]) -> None:
        self._stretch = BandScaling(info)

    @property
    def in_bands(self) -> int:
        return len(self.bands)

    def check_tiles(self, tiles: Tiles) -> None:  # noqa: B027 (optional)
        """Warn of, or reject, tiles that do not suit the codec; called before a dataset is encoded."""

    def input(self, tiles: Tiles, rows: Rows) -> torch.Tensor:
        """Return accepted tiles as codec input: float32 (N, C, H, W) in [-1, 1]."""
        return torch.from_numpy(tiles.scaled(rows))

    @abstractmethod
    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return unscaled mean and log-variance (or None), float32 (N, Z, h, w) each, of x (N, C, H, W)."""

    @abstractmethod
    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Decode scaled latents (N, Z, h, w) to float32 images (N, C, H, W), about [-1, 1] and not clipped.

        With `noise_channels` further channels of noise, the result is a sample of the decoder's distribution, without them
        its mean.
        """

    def to_rgb(self, x: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Convert decoded images (N, C, H, W) to uint8 (N, 3, H, W) by the fixed display stretch of real tiles."""
        return self._stretch.display(self._stretch.unscale(x.float().numpy()))


class PixelCodec(Codec):
    """Identity codec: a latent is the scaled tile, clipped to [-1, 1]."""

    keeps_pixels, bound, reach = True, 1.0, 0

    def __init__(self, info: dict[str, Any]) -> None:
        super().__init__(info)
        self.bands = tuple(info["bands"])
        self.id = f"pixel-{digest({'kind': 'pixel'})}"
        self.latent_channels, self.downsampling_factor, self.scale, self.has_logvar = len(self.bands), 1, 1.0, False

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        check_bands(x, self.in_bands)
        return x, None

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        return latent.float()  # (N, C, H, W)


class DisplayBandCodec(Codec):
    """Codec of the three display bands.

    The display stretch maps a tile to 8 bits, which become [-1, 1]. A decoded image is therefore a display image, and
    other bands cannot be recovered.
    """

    def input(self, tiles: Tiles, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(tiles.rgb(rows)).float() / 127.5 - 1.0  # (N, 3, H, W)

    def to_rgb(self, x: torch.Tensor) -> npt.NDArray[np.uint8]:
        levels: npt.NDArray[np.uint8] = (x.float() * 127.5 + 128.0).clamp(0.0, 255.0).to(torch.uint8).numpy()
        return levels  # (N, 3, H, W)


class KlCodec(Codec):
    """Autoencoder over all bands of the dataset."""

    has_logvar = True

    def __init__(self, net: Network, info: dict[str, Any], *, id: str, scale: float, bands: tuple[str, ...]) -> None:
        super().__init__(info)
        self.net, self.id, self.scale, self.bands = net, id, scale, bands
        self.latent_channels, self.downsampling_factor = net.latent_channels, net.downsampling_factor
        if isinstance(net, Autoencoder):
            self.reach, self.noise_channels = net.reach, net.sizes.noise_channels

    @torch.no_grad()
    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        check_bands(x, self.in_bands)
        check_sides(self.id, self.downsampling_factor, x.shape[-2], x.shape[-1])
        parts = [self.net.encode(part) for part in torch.split(x, self.net.max_batch_size(x.shape[-1]))]
        # Without a copy of a single part.
        mean, logvar = (torch.cat(group) if len(group) > 1 else group[0] for group in zip(*parts, strict=True))
        return mean, logvar  # (N, Z, h, w) each

    @torch.no_grad()
    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        batch_size = self.net.max_batch_size(latent.shape[-1] * self.downsampling_factor)
        parts = [self.net.decode(part.float() / self.scale) for part in torch.split(latent, batch_size)]
        return torch.cat(parts)  # (N, C, H, W)


class SdCodec(DisplayBandCodec, KlCodec):
    """Stable Diffusion's autoencoder, applied to the three display bands."""


def check_sides(codec: str, factor: int, height: int, width: int) -> None:
    """Raise UserError for tile sizes that the codec's factor does not divide."""
    if height % factor or width % factor:
        raise user_error(
            f"tiles do not fit codec {codec}",
            got=f"{height} x {width} pixels",
            expected=f"multiples of {factor}, its downsampling factor",
            fix="change `tiles.size` of the dataset, or use a codec with another `downsampling_factor`",
        )


def check_bands(x: torch.Tensor, bands: int) -> None:
    """Assert the number of bands of images."""
    assert x.shape[1:2] == (bands,), f"expected (N, {bands}, H, W), got {tuple(x.shape)}"
