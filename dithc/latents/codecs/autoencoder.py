"""An autoencoder of tiles of any bands: the linear codec of its patches, exactly, and convolutions that add to it.

Both halves are a matrix, found by principal components (PCA) of the patches of all bands, plus a branch of convolutions whose
last layer starts at zero: an untrained network is the best linear codec of its size, and training starts from there. All
convolutions are at the latent's resolution, where they have many channels and few places; that is what CPUs are fast at.

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

from dithc.log import problem
from dithc.sealed import parse, plain
from dithc.tensors import read_tensors, write_tensors

CONFIG_FILE, WEIGHTS_FILE = "config.json", "autoencoder.safetensors"
FORMAT = "dithc autoencoder 1"
INITIAL_LOGVAR = -6.0  # noise as strong as the signal would hide it for hundreds of steps
LEAST_LOGVAR, MOST_LOGVAR = -30.0, 20.0
SMALLEST_STD = 1e-4  # of a component of scaled patches: one that does not vary is not blown up
NUMBERS_AT_ONCE = 1 << 24  # of the widest layer, of which a few are alive at a time


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Settings of all weight shapes: C bands, factor f (tile side over latent side), Z latent channels, width, blocks."""

    bands: int
    factor: int
    latent_channels: int
    width: int
    encoder_blocks: int
    decoder_blocks: int

    @property
    def patch(self) -> int:
        """Numbers of a patch (P)."""
        return self.bands * self.factor**2


class Block(nn.Module):
    """x + conv(silu(conv(silu(x)))), of 3 x 3 pixels each; the second starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = _zero(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(functional.silu(self.first(functional.silu(x))))
        return out  # (N, D, h, w)


class Autoencoder(nn.Module):
    """Encoder and decoder; `start_linear` gives them their linear parts, `standardise` the scale of their latents."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, latent = sizes.width, sizes.latent_channels
        self.centre = nn.Parameter(torch.zeros(sizes.patch))  # (P)
        self.analysis = nn.Parameter(torch.zeros(latent, sizes.patch))  # (Z, P)
        self.synthesis = nn.Parameter(torch.zeros(sizes.patch, latent))  # (P, Z)
        self.encoder = nn.Sequential(
            nn.Conv2d(sizes.patch, width, 3, padding=1),
            *(Block(width) for _ in range(sizes.encoder_blocks)),
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
        self.mean: Tensor
        self.std: Tensor
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def bands(self) -> int:
        """Bands of an image."""
        return self.sizes.bands

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return self.sizes.latent_channels

    @property
    def factor(self) -> int:
        """Side of a tile over side of its latent."""
        return self.sizes.factor

    @property
    def reach(self) -> int:
        """Places of a latent on each side of one that its pixels depend on: the decoder has convolutions alone, and no norm."""
        return 1 + 2 * self.sizes.decoder_blocks

    # both ways

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the posterior, float32 (N, Z, h, w) each, of x (N, C, H, W) in [-1, 1]."""
        patches = self._patches(x)  # (N, P, h, w)
        added = self.encoder(patches).float()  # (N, 2 Z, h, w)
        mean, logvar = added.chunk(2, dim=1)
        mean = mean + self._analysed(patches)
        logvar = (logvar + INITIAL_LOGVAR).clamp(LEAST_LOGVAR, MOST_LOGVAR)
        return (mean - _column(self.mean)) / _column(self.std), logvar - 2.0 * _column(self.std).log()

    def decode(self, z: Tensor) -> Tensor:
        """The image of an unscaled latent: (N, Z, h, w) to float32 (N, C, H, W), about [-1, 1] but not clipped."""
        z = (z * _column(self.std) + _column(self.mean)).contiguous(memory_format=torch.channels_last)  # (N, Z, h, w)
        return functional.pixel_shuffle(self.decoder(z).float() + self._synthesised(z), self.factor)

    @property
    def decoder_parts(self) -> tuple[nn.Module, ...]:
        """The modules that `decode` calls; all else that it does is by place."""
        return (self.decoder,)

    def linear(self, x: Tensor) -> Tensor:
        """What the linear parts alone give back of x (N, C, H, W)."""
        return functional.pixel_shuffle(self._synthesised(self._analysed(self._patches(x))), self.factor)

    def images_at_once(self, side: int) -> int:
        """How many images of this side one pass may hold, so that activations stay within a GiB."""
        widest = max(self.sizes.width, self.sizes.patch)
        return max(1, NUMBERS_AT_ONCE * self.factor**2 // (widest * side**2))

    def _patches(self, x: Tensor) -> Tensor:
        """Patches (N, P, h, w), less their mean."""
        patches = functional.pixel_unshuffle(x, self.factor).contiguous(memory_format=torch.channels_last)
        return patches - _column(self.centre)

    def _analysed(self, patches: Tensor) -> Tensor:
        return functional.conv2d(patches, self.analysis[:, :, None, None]).float()  # (N, Z, h, w)

    def _synthesised(self, z: Tensor) -> Tensor:
        return functional.conv2d(z, self.synthesis[:, :, None, None]).float() + _column(self.centre)  # (N, P, h, w)

    # what is not learnt by steps

    @torch.no_grad()
    def start_linear(self, images: Iterable[Tensor]) -> None:
        """Set the linear parts to the unit-variance principal components of patches in all batches (N, C, H, W).

        Raises UserError for values that are not finite.
        """
        count, total = 0, torch.zeros(self.sizes.patch, dtype=torch.float64)
        squares = torch.zeros(self.sizes.patch, self.sizes.patch, dtype=torch.float64)
        for x in images:
            rows = functional.pixel_unshuffle(x, self.factor).movedim(1, -1).reshape(-1, self.sizes.patch).double()
            count, total, squares = count + len(rows), total + rows.sum(dim=0), squares + rows.T @ rows
        if not bool(squares.isfinite().all()):
            raise problem(
                "tiles that the codec is to learn are not finite",
                got="NaN or infinity",
                expected="finite numbers",
                fix="look at the scenes: a tile of such numbers should not have been accepted",
            )
        mean = total / count  # (P)
        variances, directions = torch.linalg.eigh(squares / count - torch.outer(mean, mean))  # ascending
        directions = directions.flip(1)[:, : self.latent_channels]  # (P, Z or fewer, where patches have fewer numbers)
        directions = directions * directions.gather(0, directions.abs().argmax(dim=0, keepdim=True)).sign()
        std = variances.flip(0)[: self.latent_channels].clamp(min=SMALLEST_STD**2).sqrt()
        self.centre.copy_(mean)
        self.analysis[: len(std)] = (directions / std).T.float()
        self.synthesis[:, : len(std)] = (directions * std).float()

    @torch.no_grad()
    def standardise(self, mean: Tensor, std: Tensor) -> None:
        """Scale each latent channel from `mean` and `std` (Z,) to 0 and 1 without a change of any reconstruction."""
        self.mean += mean * self.std
        self.std *= std

    # files

    def save(self, folder: Path) -> None:
        """Write config.json and the weights to an existing folder; OSError if the disk is full or not writable."""
        (folder / CONFIG_FILE).write_text(json.dumps({"format": FORMAT, **asdict(self.sizes)}, indent=1) + "\n")
        write_tensors(folder / WEIGHTS_FILE, {name: value.contiguous() for name, value in self.state_dict().items()})

    @classmethod
    def load(cls, folder: Path, *, fix: str) -> Self:
        """Read what `save` wrote; UserError with `fix` if a file is missing, damaged or of another kind of network."""
        try:
            said = parse(plain(folder / CONFIG_FILE).read_text())
            if said.pop("format", None) != FORMAT:
                raise ValueError(f"{CONFIG_FILE} is not of format {FORMAT!r}")
            net = cls(Sizes(**said))
            net.load_state_dict(dict(read_tensors(folder / WEIGHTS_FILE)))
        except (OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise problem(
                f"autoencoder in {folder} cannot be loaded",
                got=str(error).partition("\n")[0] or type(error).__name__,
                expected=f"{CONFIG_FILE} and {WEIGHTS_FILE} that `dithc codec` wrote",
                fix=fix,
            ) from error
        return net.eval().requires_grad_(False)


def autoencoder_digest(folder: Path, *, scale: float) -> str:
    """First 12 hex digits of the SHA-256 over weights, configuration and scale: what decides every latent."""
    found = hashlib.sha256(json.dumps({"scale": scale}).encode())
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        found.update((folder / name).read_bytes())
    return found.hexdigest()[:12]


def _zero(layer: nn.Conv2d) -> nn.Conv2d:
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def _column(values: Tensor) -> Tensor:
    """Numbers of channels (Z), shaped to meet (N, Z, h, w)."""
    return values.view(1, -1, 1, 1)
