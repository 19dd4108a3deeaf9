"""Codecs: what turns tiles into latents and back, behind one interface, whatever network stands behind it.

Legend: N batch, C bands of the codec, H, W tile; Z latent channels, h, w latent (H, W divided by the factor).
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dithc.config import codecs
from dithc.data import Rows, Stretch, Tiles
from dithc.latents.autoencoder import CONFIG_FILE, WEIGHTS_FILE, Autoencoder, autoencoder_digest
from dithc.latents.diffusers_kl import DiffusersKl, digest_of
from dithc.log import logger, problem
from dithc.runs import Manifest, digest, sha256_file
from dithc.sealed import parse, plain

CODEC_FILE = "codec.json"
log = logger(__name__)


class Codec(ABC):
    """Tiles to latents and back.

    Attributes:
        id: kind and 12 hex digits of what decides every latent; recorded with latents and checkpoints.
        bands: names of the bands that `input` gives and `decode` returns.
        latent_channels: Z.
        factor: side of a tile over side of its latent.
        scale: factor on latents that gives them about unit variance; `decode` takes scaled latents.
        has_logvar: whether `encode` gives a log-variance.
    """

    id: str
    bands: tuple[str, ...]
    latent_channels: int
    factor: int
    scale: float
    has_logvar: bool

    @property
    def in_bands(self) -> int:
        """Number of bands of the codec (C)."""
        return len(self.bands)

    @abstractmethod
    def input(self, tiles: Tiles, rows: Rows) -> torch.Tensor:
        """Accepted tiles as this codec sees them: float32 (N, C, H, W) in [-1, 1]."""

    @abstractmethod
    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Mean and log-variance (None without `has_logvar`), unscaled float32 (N, Z, h, w), of x (N, C, H, W)."""

    @abstractmethod
    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Scaled latents (N, Z, h, w) to images, float32 (N, C, H, W), about [-1, 1] but not clipped."""

    @abstractmethod
    def to_rgb(self, x: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Decoded images (N, C, H, W) as uint8 (N, 3, H, W), by the fixed display stretch real tiles are shown with."""


class PixelCodec(Codec):
    """No codec: a latent is the scaled tile itself."""

    def __init__(self, info: dict[str, Any]) -> None:
        self.bands = tuple(info["bands"])
        self.id = f"pixel-{digest({'kind': 'pixel'})}"
        self.latent_channels, self.factor, self.scale, self.has_logvar = len(self.bands), 1, 1.0, False
        self._stretch = Stretch(info)

    def input(self, tiles: Tiles, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(tiles.scaled(rows))  # (N, C, H, W)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        _check_bands(x, self.in_bands)
        return x, None

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        return latent.float()  # (N, C, H, W)

    def to_rgb(self, x: torch.Tensor) -> npt.NDArray[np.uint8]:
        return self._stretch.display(self._stretch.unscale(x.float().numpy()))


class KlCodec(Codec):
    """An autoencoder over all bands of the data set."""

    has_logvar = True

    def __init__(
        self, net: Autoencoder | DiffusersKl, info: dict[str, Any], *, id: str, scale: float, bands: tuple[str, ...]
    ) -> None:
        self.net, self.id, self.scale, self.bands = net, id, scale, bands
        self.latent_channels, self.factor = net.latent_channels, net.factor
        self._stretch = Stretch(info)

    def input(self, tiles: Tiles, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(tiles.scaled(rows))  # (N, C, H, W)

    @torch.no_grad()
    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _check_bands(x, self.in_bands)
        side = x.shape[-1]
        if x.shape[-2] % self.factor or side % self.factor:
            raise problem(
                f"tiles do not fit codec {self.id}",
                got=f"{x.shape[-2]} x {side} pixels",
                expected=f"multiples of {self.factor}, its downsampling factor",
                remedy="change `tiles.size` of the data set, or use a codec of another `factor`",
            )
        parts = [self.net.encode(part) for part in torch.split(x, self.net.images_at_once(side))]
        mean, logvar = (torch.cat(moments) for moments in zip(*parts, strict=True))
        return mean, logvar  # (N, Z, h, w) each

    @torch.no_grad()
    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        at_once = self.net.images_at_once(latent.shape[-1] * self.factor)
        parts = [self.net.decode(part.float() / self.scale) for part in torch.split(latent, at_once)]
        return torch.cat(parts)  # (N, C, H, W)

    def to_rgb(self, x: torch.Tensor) -> npt.NDArray[np.uint8]:
        return self._stretch.display(self._stretch.unscale(x.float().numpy()))


class SdCodec(KlCodec):
    """Stable Diffusion's autoencoder: it sees, and gives, the three display bands as they are shown.

    A tile goes through the display stretch to 8 bits, which become [-1, 1]; so a decoded image is a picture already and
    the other bands cannot be had back.
    """

    def input(self, tiles: Tiles, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(tiles.rgb(rows)).float() / 127.5 - 1.0  # (N, 3, H, W)

    def to_rgb(self, x: torch.Tensor) -> npt.NDArray[np.uint8]:
        levels: npt.NDArray[np.uint8] = (x.float() * 127.5 + 128.0).clamp(0.0, 255.0).to(torch.uint8).numpy()
        return levels  # (N, 3, H, W)


def open_codec(settings: codecs.Codec, *, info: dict[str, Any], folder: Path | None = None) -> Codec:
    """The codec that a configuration asks for, ready to encode and decode tiles of one data set.

    Args:
        settings: section of the configuration.
        info: content of the data set's dataset.json (its bands, scaling and display stretch).
        folder: what `train_codec` wrote, for a `kl-vae`.

    Raises:
        UserError: files are missing or damaged, or the codec is of other bands than the data set.
    """
    if isinstance(settings, codecs.PixelCodec):
        return PixelCodec(info)
    if isinstance(settings, codecs.SdVae):
        return _open_sd(settings, info)
    assert folder is not None, "a kl-vae codec needs the folder of the codec stage"
    return _open_kl(folder, info)


def _open_sd(settings: codecs.SdVae, info: dict[str, Any]) -> Codec:
    folder = Path(settings.path)
    remedy = (
        f"copy both files of Stable Diffusion's autoencoder (such as stabilityai/sd-vae-ft-ema) into {folder}, or set the "
        "codec's `path`; nothing is downloaded"
    )
    net = DiffusersKl.load(folder, remedy=remedy)
    if net.bands != 3:
        raise problem(
            f"autoencoder in {folder} is no RGB autoencoder", got=f"{net.bands} bands", expected=3, remedy=remedy
        )
    identity = f"sd-vae-{digest_of(folder, scale=settings.scale)}"
    return SdCodec(net, info, id=identity, scale=settings.scale, bands=tuple(info["display"]["bands"]))


def _open_kl(folder: Path, info: dict[str, Any]) -> Codec:
    remedy = "rerun the codec stage (`dithc codec`)"
    for name in (CONFIG_FILE, WEIGHTS_FILE, CODEC_FILE):
        Manifest.whole(folder / name)
    net = Autoencoder.load(folder, remedy=remedy)
    try:
        said = parse(plain(folder / CODEC_FILE).read_text())
        identity, scale, bands, sha256 = str(said["id"]), float(said["scale"]), tuple(said["bands"]), said["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise problem(
            f"{folder / CODEC_FILE} cannot be read", got=repr(error), expected="what `dithc codec` wrote", remedy=remedy
        ) from error
    found = sha256_file(folder / WEIGHTS_FILE)
    if found != sha256 or identity != f"kl-vae-{autoencoder_digest(folder, scale=scale)}":
        raise problem(
            f"codec in {folder} is not the one {CODEC_FILE} describes",
            got=f"weights with SHA-256 {found[:12]}... (or an edited {CODEC_FILE})",
            expected=f"{sha256[:12]}... and id {identity}",
            remedy=remedy,
        )
    wanted = tuple(info["bands"])
    if len(bands) != len(wanted):
        raise problem(
            f"codec in {folder} is of another number of bands than the data set",
            got=f"{len(bands)} ({', '.join(bands)})",
            expected=f"{len(wanted)} ({', '.join(wanted)})",
            remedy="give the data set a codec trained on tiles with the same bands",
        )
    if bands != wanted:
        log.warning(f"codec {identity} was trained on bands {', '.join(bands)} and is used for {', '.join(wanted)}")
    return KlCodec(net, info, id=identity, scale=scale, bands=wanted)


def _check_bands(x: torch.Tensor, bands: int) -> None:
    assert x.shape[1:2] == (bands,), f"expected (N, {bands}, H, W), got {tuple(x.shape)}"
