"""Autoencoder for tiles of any bands: the exact linear codec of their patches, plus convolutional corrections.

Encoder and decoder are each a matrix, from the principal components (PCA) of patches of all bands, plus a convolutional
branch with a zero-initialized last layer. An untrained network is thus the best linear codec of its size, and training
starts there. Convolutions run at latent resolution, with many channels and few places, which suits CPUs.

The decoder's distribution is Gaussian: its mean, and by patch the covariance of the residuals of training tiles, of a strength
that depends on the decoder's last activations. The mean alone is too smooth: it lacks the parts that latents cannot express.
The mean also shrinks differences between bands. In samples, a matrix restores the local covariance of bands.

Legend: N batch, C bands, H, W tile; f side of a patch, P = C f^2 numbers of a patch; Z, h, w latent, h = H / f, w = W / f.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import user_error
from dithc.core.tensor_files import read_tensors, write_tensors

CONFIG_FILE, WEIGHTS_FILE = "config.json", "autoencoder.safetensors"
FORMAT = "dithc autoencoder 4"
INITIAL_LOGVAR = -6.0  # noise as strong as the signal would hide it for hundreds of steps
MIN_LOGVAR, MAX_LOGVAR = -30.0, 20.0
MIN_STD = 1e-4  # of a component of scaled patches; constant components are not amplified
MAX_NOISE_CHANNELS = 3072  # the square is the size of a stored matrix
LOCAL_RADIUS = 2  # in latent pixels, of the square of the local mean
MAX_ACTIVATIONS = 1 << 24  # in the widest layer; several such arrays exist at a time


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Settings of all weight shapes: C bands, factor f (tile side over latent side), Z latent channels, width, blocks."""

    bands: int
    downsampling_factor: int
    latent_channels: int
    hidden_channels: int
    decoder_blocks: int

    @property
    def patch(self) -> int:
        """Values per patch (P)."""
        return self.bands * self.downsampling_factor**2

    @property
    def noise_channels(self) -> int:
        """Values per patch of the decoder's noise: P, or 0 for patches too large for their covariance."""
        return self.patch if self.patch <= MAX_NOISE_CHANNELS else 0


class Block(nn.Module):
    """x + mix(silu(conv(silu(x)))): a 3 x 3 and a 1 x 1 convolution; the second starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = _zero(nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(functional.silu(self.first(functional.silu(x))))
        return out  # (N, D, h, w)


class Autoencoder(nn.Module):
    """Encoder and decoder; `start_linear` sets their linear parts, `standardize` the scale of their latents."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.downsampling_factor, self.latent_channels = sizes.downsampling_factor, sizes.latent_channels
        # In latent pixels: convolutions, then local means and their interpolation.
        self.reach = 1 + sizes.decoder_blocks + LOCAL_RADIUS + 1
        width, latent = sizes.hidden_channels, sizes.latent_channels
        self.centre = nn.Parameter(torch.zeros(sizes.patch))  # (P)
        self.analysis = nn.Parameter(torch.zeros(latent, sizes.patch))  # (Z, P)
        self.synthesis = nn.Parameter(torch.zeros(sizes.patch, latent))  # (P, Z)
        self.encoder = nn.Sequential(
            nn.Conv2d(sizes.patch, width, 3, padding=1),
            nn.SiLU(),
            _zero(nn.Conv2d(width, 2 * latent, 1)),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(latent, width, 3, padding=1),
            *(Block(width) for _ in range(sizes.decoder_blocks)),
            nn.SiLU(),
            _zero(nn.Conv2d(width, sizes.patch, 1)),
        )
        self.register_buffer("mean", torch.zeros(latent))
        self.register_buffer("std", torch.ones(latent))
        self.register_buffer("noise_factor", torch.zeros(sizes.noise_channels, sizes.noise_channels))
        self.register_buffer("strength", torch.zeros(width + 1))
        self.register_buffer("strength_range", torch.zeros(2))
        self.register_buffer("band_change", torch.zeros(sizes.bands, sizes.bands))
        self.mean: Tensor
        self.std: Tensor
        self.noise_factor: Tensor  # (P, P), of the covariance of residuals of strength 1
        self.strength: Tensor  # (width + 1), weights and offset of the log strength
        self.strength_range: Tensor  # (2), of the log strength of training tiles
        self.band_change: Tensor  # (C, C), from deviations from local means to changes of bands
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of the posterior, float32 (N, Z, h, w) each, of x (N, C, H, W) in [-1, 1]."""
        patches = self._unfold(x)  # (N, P, h, w)
        added = self.encoder(patches).float()  # (N, 2 Z, h, w)
        mean, logvar = added.chunk(2, dim=1)
        mean = mean + self._analyze(patches)
        logvar = (logvar + INITIAL_LOGVAR).clamp(MIN_LOGVAR, MAX_LOGVAR)
        return (mean - _column(self.mean)) / _column(self.std), logvar - 2.0 * _column(self.std).log()

    def decode(self, z: Tensor) -> Tensor:
        """Decode unscaled latents (N, Z, h, w) to float32 images (N, C, H, W), about [-1, 1] and not clipped.

        Standard normal noise in `noise_channels` further channels of z selects a sample. Without these channels, the
        result is the reconstruction of least squared error.
        """
        z, noise = z[:, : self.latent_channels], z[:, self.latent_channels :]
        patches, hidden = self.decode_patches(z)
        image = functional.pixel_shuffle(patches, self.downsampling_factor)  # (N, C, H, W)
        if not noise.shape[1]:
            return image
        noise = noise.contiguous(memory_format=torch.channels_last)  # sums independent of the number of threads
        sampled = functional.conv2d(noise, self.noise_factor[:, :, None, None])  # (N, P, h, w)
        added = functional.pixel_shuffle(self.strength_of(hidden) * sampled, self.downsampling_factor)
        return image + self._band_changes(image) + added

    def _band_changes(self, image: Tensor) -> Tensor:
        """Return the changes of an image (N, C, H, W) that give its bands their covariance around local means."""
        means = functional.avg_pool2d(image, self.downsampling_factor)  # (N, C, h, w)
        side = 2 * LOCAL_RADIUS + 1
        means = functional.avg_pool2d(means, side, stride=1, padding=LOCAL_RADIUS, count_include_pad=False)
        local = functional.interpolate(means, scale_factor=float(self.downsampling_factor), mode="bilinear")
        deviations = (image - local).contiguous(memory_format=torch.channels_last)
        return functional.conv2d(deviations, self.band_change[:, :, None, None])

    def decode_patches(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return decoded patches, float32 (N, P, h, w), and the last activations (N, width, h, w)."""
        z = (z * _column(self.std) + _column(self.mean)).contiguous(memory_format=torch.channels_last)  # (N, Z, h, w)
        hidden = self.decoder[:-1](z)
        return self.decoder[-1](hidden).float() + self._synthesize(z), hidden

    def strength_of(self, hidden: Tensor) -> Tensor:
        """Return the residual's deviation (N, 1, h, w) from the last activations, within the range of training tiles."""
        low, high = self.strength_range.tolist()
        predicted = (hidden.float() * _column(self.strength[:-1])).sum(dim=1, keepdim=True) + self.strength[-1]
        return predicted.clamp(low, high).exp()

    def linear(self, x: Tensor) -> Tensor:
        """Return the reconstruction of x (N, C, H, W) by the linear parts only."""
        return functional.pixel_shuffle(self._synthesize(self._analyze(self._unfold(x))), self.downsampling_factor)

    def max_batch_size(self, side: int) -> int:
        """Return the number of images of this side per pass that keeps activations within a GiB."""
        widest = max(self.sizes.hidden_channels, self.sizes.patch)
        return max(1, MAX_ACTIVATIONS * self.downsampling_factor**2 // (widest * side**2))

    def _unfold(self, x: Tensor) -> Tensor:
        """Return centered patches (N, P, h, w)."""
        patches = functional.pixel_unshuffle(x, self.downsampling_factor).contiguous(memory_format=torch.channels_last)
        return patches - _column(self.centre)

    def _analyze(self, patches: Tensor) -> Tensor:
        return functional.conv2d(patches, self.analysis[:, :, None, None]).float()  # (N, Z, h, w)

    def _synthesize(self, z: Tensor) -> Tensor:
        return functional.conv2d(z, self.synthesis[:, :, None, None]).float() + _column(self.centre)  # (N, P, h, w)

    @torch.no_grad()
    def start_linear(self, images: Iterable[Tensor]) -> None:
        """Set the linear parts to the unit-variance principal components of patches in all batches (N, C, H, W).

        Raises UserError for values that are not finite.
        """
        count, total = 0, torch.zeros(self.sizes.patch, dtype=torch.float64)
        squares = torch.zeros(self.sizes.patch, self.sizes.patch, dtype=torch.float64)
        for x in images:
            patches = functional.pixel_unshuffle(x, self.downsampling_factor)  # (N, P, h, w)
            rows = patches.movedim(1, -1).reshape(-1, self.sizes.patch).double()
            count, total, squares = count + len(rows), total + rows.sum(dim=0), squares + rows.T @ rows
        if not bool(squares.isfinite().all()):
            raise user_error(
                "training tiles of the codec are not finite",
                got="NaN or infinity",
                expected="finite numbers",
                fix="check the scenes: these tiles should have been rejected",
            )
        mean = total / count  # (P)
        variances, directions = torch.linalg.eigh(squares / count - torch.outer(mean, mean))  # ascending
        directions = directions.flip(1)[:, : self.latent_channels]  # (P, Z or fewer, if patches have fewer values)
        directions = directions * directions.gather(0, directions.abs().argmax(dim=0, keepdim=True)).sign()
        std = variances.flip(0)[: self.latent_channels].clamp(min=MIN_STD**2).sqrt()
        self.centre.copy_(mean)
        self.analysis[: len(std)] = (directions / std).T.float()
        self.synthesis[:, : len(std)] = (directions * std).float()

    @torch.no_grad()
    def standardize(self, mean: Tensor, std: Tensor) -> None:
        """Scale each latent channel from `mean` and `std` (Z,) to 0 and 1 without changing any reconstruction."""
        self.mean += mean * self.std
        self.std *= std

    def save(self, folder: Path) -> None:
        """Write config.json and the weights to an existing folder; OSError if the disk is full or read-only."""
        (folder / CONFIG_FILE).write_text(json.dumps({"format": FORMAT, **asdict(self.sizes)}, indent=1) + "\n")
        write_tensors(folder / WEIGHTS_FILE, {name: value.contiguous() for name, value in self.state_dict().items()})

    @classmethod
    def load(cls, folder: Path, *, fix: str) -> Self:
        """Read the output of `save`; UserError with `fix` if a file is missing, damaged or of another network."""
        try:
            config = parse_json(require_regular_file(folder / CONFIG_FILE).read_text())
            if config.pop("format", None) != FORMAT:
                raise ValueError(f"{CONFIG_FILE} is not of format {FORMAT!r}")
            net = cls(Sizes(**config))
            net.load_state_dict(dict(read_tensors(folder / WEIGHTS_FILE)))
        except (OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise user_error(
                f"autoencoder in {folder} cannot be loaded",
                got=str(error).partition("\n")[0] or type(error).__name__,
                expected=f"{CONFIG_FILE} and {WEIGHTS_FILE} written by `dithc codec`",
                fix=fix,
            ) from error
        return net.eval().requires_grad_(False)


def autoencoder_digest(folder: Path) -> str:
    """Return 12 hex digits of the SHA-256 over weights and configuration, which determine all latents."""
    hasher = hashlib.sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        hasher.update((folder / name).read_bytes())
    return hasher.hexdigest()[:12]


def _zero(layer: nn.Conv2d) -> nn.Conv2d:
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def _column(values: Tensor) -> Tensor:
    """Reshape channel values (Z) for broadcasting with (N, Z, h, w)."""
    return values.view(1, -1, 1, 1)
