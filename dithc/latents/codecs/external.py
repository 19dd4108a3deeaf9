"""External autoencoders of any latent depth and range, applied to all bands even if the network has three.

Opening a codec tests it on noise. Encoding a dataset first checks it on real tiles. Latents are stored
normalized, (z - shift) scale by channel, so that fp16 can represent them and the diffusion model uses them unchanged.

Legend: N batch, C bands of the dataset, b of a group, G groups, H, W tile; Z channels of the network, h, w latent.
"""

import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dithc.config import codecs
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.weights import digest_of_files
from dithc.data import Tiles
from dithc.latents.codecs.codec import LARGEST_FP16, Codec, DisplayBandCodec, check_bands, check_sides
from dithc.latents.codecs.diffusers_autoencoder import DiffusersAutoencoder, Normalization, network_files
from dithc.latents.codecs.torchscript import TorchScriptAutoencoder, cause, files_of

TEST_LATENT_SIDE = 4  # side of the latents for the validation of a convolutional network
BATCH_TOLERANCE = 1e-3  # relative to the largest magnitude; rounding differs between batches of one and two
CHECKED_TILES = 16  # number of tiles
MIN_CHANNEL_STD = 1e-4  # minimum deviation of a channel for a suggested `scaling_factor`
MAX_MEAN, MIN_STD, MAX_STD = 1.0, 0.5, 2.0  # over all channels; beyond these bounds a warning is logged
log = get_logger(__name__)


class AutoencoderProtocol(Protocol):
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


class ExternalCodec(Codec):
    """Autoencoder of another program; stored latents are normalized, so `scale` is 1.

    `bands` are the C names of its input. `shift` and `scales` are one number, one per channel of the network, or one
    per channel of the latents (G Z).
    """

    scale = 1.0

    def __init__(
        self,
        net: AutoencoderProtocol,
        settings: codecs.ExternalCodecConfig,
        info: dict[str, Any],
        *,
        id: str,
        bands: tuple[str, ...],
        shift: list[float],
        scales: list[float],
    ) -> None:
        super().__init__(info)
        self.net, self.id, self.bands, self.has_logvar = net, id, bands, net.has_logvar
        self.downsampling_factor, self.latent_channels = settings.downsampling_factor, settings.channels(len(bands))
        groups = settings.bands if isinstance(settings.bands, list) else [list(bands)]
        self._groups = torch.tensor([[bands.index(band) for band in group] for group in groups])  # (G, b)
        self._band_counts = torch.bincount(self._groups.flatten(), minlength=len(bands)).view(-1, 1, 1)  # (C, 1, 1)
        self._shift, self._scales = self._column(shift), self._column(scales)  # (G Z, 1, 1) each

    @torch.no_grad()
    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return normalized mean and log-variance, float32 (N, G Z, h, w) each, of x (N, C, H, W)."""
        check_bands(x, self.in_bands)
        check_sides(self.id, self.downsampling_factor, x.shape[-2], x.shape[-1])
        tiles = x[:, self._groups].flatten(0, 1)  # (N G, b, H, W)
        pairs = [self.net.encode(part) for part in torch.split(tiles, DiffusersAutoencoder.max_batch_size(x.shape[-1]))]
        means, logvars = zip(*pairs, strict=True)
        mean = (self._stack_groups(means) - self._shift) * self._scales
        return mean, self._stack_groups(logvars) + 2.0 * self._scales.log() if self.has_logvar else None

    @torch.no_grad()
    def decode(self, latent: Tensor) -> Tensor:
        z = latent.float() / self._scales + self._shift  # (N, G Z, h, w)
        z = z.reshape(-1, self.latent_channels // len(self._groups), *z.shape[2:])  # (N G, Z, h, w)
        batch_size = DiffusersAutoencoder.max_batch_size(z.shape[-1] * self.downsampling_factor)
        tiles = torch.cat([self.net.decode(part) for part in torch.split(z, batch_size)])
        images = tiles.reshape(len(latent), self._groups.numel(), *tiles.shape[2:])  # (N, G b, H, W)
        total = images.new_zeros(len(images), self.in_bands, *images.shape[2:])
        return total.index_add_(1, self._groups.flatten(), images) / self._band_counts  # (N, C, H, W)

    def check_tiles(self, tiles: Tiles) -> None:
        """Raise UserError if latents of a few tiles exceed fp16; warn if they are far from mean 0 and deviation 1."""
        rows = tiles.rows("train") if len(tiles.rows("train")) else tiles.rows("all")
        count = min(len(rows), CHECKED_TILES)
        mean, logvar = self.encode(self.input(tiles, rows[np.arange(count) * len(rows) // count]))
        largest = float(mean.abs().max())
        middle, variance = mean.double().mean(dim=(0, 2, 3)), mean.double().var(dim=(0, 2, 3), correction=0)  # (G Z)
        if logvar is not None:
            largest = largest + 0.0 * float(logvar.sum())  # propagates NaN and infinity of the log-variance
            variance += logvar.double().exp().mean(dim=(0, 2, 3))
        scales = self._scales.double().flatten()
        shift = _format_numbers(self._shift.double().flatten() + middle / scales)
        scaling = _format_numbers(scales / variance.sqrt().clamp(min=MIN_CHANNEL_STD))
        bands = "check that `bands` match the network"
        fix = f"set the codec's `shift_factor: {shift}` and `scaling_factor: {scaling}`, or {bands}"
        if not largest < LARGEST_FP16:
            raise user_error(
                f"latents of codec {self.id} cannot be stored",
                got=f"a largest magnitude of {largest} among {count} tiles",
                expected=f"finite numbers below {LARGEST_FP16:.0f} (fp16)",
                fix=fix if math.isfinite(largest) else f"check the codec's weights, or {bands}",
            )
        mean_rms, std = float(middle.square().mean().sqrt()), float(variance.mean().sqrt())
        if mean_rms > MAX_MEAN or not MIN_STD <= std <= MAX_STD:
            log.warning(
                f"latents of codec {self.id} are far from mean 0 and standard deviation 1, as diffusion assumes: mean "
                f"{mean_rms:.3g} and deviation {std:.3g}, root mean squares of all channels over {count} tiles; {fix}"
            )

    def _column(self, values: list[float]) -> Tensor:
        """Reshape one number, or numbers per channel of the network or the latents, to (G Z, 1, 1)."""
        channels = self.latent_channels // len(self._groups)
        if len(values) not in (1, channels, self.latent_channels):
            raise user_error(
                f"normalization of codec {self.id} does not match its latents",
                got=f"{len(values)} numbers",
                expected=f"1, or one per channel ({channels})",
                fix="set the codec's `shift_factor` and `scaling_factor`",
            )
        return torch.tensor(values, dtype=torch.float32).repeat(self.latent_channels // len(values)).view(-1, 1, 1)

    def _stack_groups(self, parts: tuple[Tensor, ...]) -> Tensor:
        moments = torch.cat(parts)  # (N G, Z, h, w)
        return moments.reshape(-1, self.latent_channels, *moments.shape[2:])  # (N, G Z, h, w)


class ExternalDisplayCodec(DisplayBandCodec, ExternalCodec):
    """External autoencoder applied to the three display bands."""


def open_external(settings: codecs.ExternalCodecConfig, info: dict[str, Any]) -> Codec:
    """Return a `diffusers`, `torchscript` or installed codec after validation; `info` is the content of dataset.json.

    Raises UserError if files are missing or damaged, the scale of latents is unknown, or the codec contradicts the
    configuration.
    """
    dataset_bands = list(info["bands"])
    try:
        settings.check_bands(dataset_bands, "codec")
    except ValueError as error:
        raise user_error(
            f"bands of codec {settings.named} are not in the dataset",
            got=error,
            expected=f"groups of {', '.join(dataset_bands)}",
            fix="change the codec's `bands`, or use another codec",
        ) from error
    bands = tuple(info["display"]["bands"] if settings.sees_display else dataset_bands)
    net: AutoencoderProtocol
    normalization = Normalization([0.0], None)
    if isinstance(settings, codecs.PluginCodec):
        files, net = settings.files, settings.called(settings.network)
    elif isinstance(settings, codecs.DiffusersCodecConfig):
        path = Path(settings.path)
        fix = f"copy config.json and the weights into {path}, or set the codec's `path`; nothing is downloaded"
        net = autoencoder = DiffusersAutoencoder.load(path, fix=fix)
        files, normalization = network_files(path), autoencoder.normalization
    else:
        assert isinstance(settings, codecs.TorchScriptCodecConfig)
        files, net = files_of(Path(settings.path)), TorchScriptAutoencoder(settings)
    num_bands = len(settings.bands[0]) if isinstance(settings.bands, list) else len(bands)
    _check_network(net, settings, bands=num_bands, side=int(info["size"]))
    decides = settings.model_dump(mode="json", exclude={"path", "trust_code", "kind"})
    if isinstance(settings, codecs.PluginCodec):
        decides |= {"plugin": settings.plugin}
    kind = f"{settings.kind}-display" if settings.sees_display else settings.kind
    return (ExternalDisplayCodec if settings.sees_display else ExternalCodec)(
        net,
        settings,
        info,
        id=f"{kind}-{digest_of_files(files, settings=decides)[:12]}",
        bands=bands,
        shift=_numbers(settings.shift_factor, normalization.shift, codec=settings.named),
        scales=_numbers(settings.scaling_factor, normalization.scale, codec=settings.named),
    )


def _numbers(setting: float | list[float] | None, default: list[float] | None, *, codec: str) -> list[float]:
    """Return the numbers of the configuration, or else of the network."""
    if setting is not None:
        return setting if isinstance(setting, list) else [setting]
    if default is None:
        raise user_error(
            f"scale of the latents of autoencoder {codec} is unknown",
            got="a config.json without scaling_factor and latents_std",
            expected="a factor that gives them about unit variance",
            fix="set the codec's `scaling_factor`; start with 1, and `dithc latents` logs the value for your tiles",
        )
    return default


def _format_numbers(values: Tensor) -> str:
    return f"[{', '.join(f'{value:.4g}' for value in values.tolist())}]"


@torch.no_grad()
def _check_network(net: AutoencoderProtocol, settings: codecs.ExternalCodecConfig, *, bands: int, side: int) -> None:
    """Test both halves on noise: sizes, finite values, and equal results for a tile alone and in a batch."""
    path, factor, channels = settings.named, settings.downsampling_factor, settings.latent_channels
    if net.bands not in (None, bands):
        raise user_error(
            f"number of bands of autoencoder {path} differs from its input",
            got=f"{net.bands} bands",
            expected=f"{bands}, by `bands`",
            fix="set the codec's `bands`: display for three, all for every band, or groups of that size",
        )
    check_sides(path, factor, side, side)
    if isinstance(net, DiffusersAutoencoder):  # convolutional, so a small tile suffices
        side = min(side, TEST_LATENT_SIDE * factor)
    x = torch.rand(2, bands, side, side, generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0  # (2, b, H, W)
    expected = (2, channels, side // factor, side // factor)
    try:
        mean, logvar = net.encode(x)
        single, _ = net.encode(x[:1])
        fits = [latents.shape == expected for latents in (mean, logvar) if latents is not None]
        decoded = net.decode(mean) if all(fits) else None
        decoded_single = net.decode(mean[:1]) if all(fits) else None
    except Exception as error:  # a program may raise anything
        raise _mismatch(path, got=cause(error), expected=f"tiles {tuple(x.shape)} to be encoded and decoded") from error
    if decoded is None or decoded_single is None:
        raise _mismatch(
            path,
            got=f"latents {tuple(mean.shape)} of tiles {tuple(x.shape)}",
            expected=f"{expected}, by `latent_channels` {channels} and `downsampling_factor` {factor}",
        )
    if decoded.shape != x.shape:
        raise _mismatch(path, got=f"decoded tiles {tuple(decoded.shape)}", expected=tuple(x.shape))
    for operation, batch, single_tile in (("encoding", mean, single), ("decoding", decoded, decoded_single)):
        if not bool(batch.isfinite().all()):
            raise _mismatch(path, got=f"NaN or infinity from {operation} noise", expected="finite numbers")
        difference = float((batch[:1] - single_tile).abs().max() / batch.abs().max().clamp(min=1e-12))
        if not difference <= BATCH_TOLERANCE:
            raise user_error(
                f"{operation} a tile with autoencoder {path} depends on the other tiles of its batch, on chance or on "
                "earlier calls",
                got=f"{difference:.2g} of the largest magnitude between a tile alone and in a batch",
                expected=f"at most {BATCH_TOLERANCE}",
                fix="export the file in evaluation mode, without dropout or batch statistics, and return the mean of "
                "the posterior (or `moments: mean-logvar`) instead of a sample",
            )


def _mismatch(path: str, *, got: object, expected: object) -> UserError:
    return user_error(
        f"autoencoder {path} contradicts the configuration",
        got=got,
        expected=expected,
        fix="set the codec's `latent_channels`, `downsampling_factor` and `bands` to the network's values, or select "
        "another file",
    )
