"""Autoencoders as programs: TorchScript files, or graphs written by torch.export.

Contract of the files: `encode` maps float32 tiles (N, C, H, W) between `low` and `high` to latents (N, Z, h, w). With
`moments: mean-logvar` it returns mean and log-variance, as a pair or as (N, 2 Z, h, w). `decode` maps latents (N, Z, h,
w) to tiles of that range. Both are deterministic and independent of the batch size.

These files are programs: opening them, and each batch, executes their code with the user's rights. The configuration is
rejected unless it states that the user trusts the file.

Legend: N batch, C bands, H, W tile; Z latent channels, h, w latent.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dithc.config import codecs
from dithc.core.logging import user_error
from dithc.core.weights import content_of, unreadable

PAIRS = ("encoder.pt", "decoder.pt"), ("encoder.pt2", "decoder.pt2")
CONTRACT = (
    "a TorchScript file with methods `encode` and `decode`, or a folder with encoder.pt and decoder.pt (TorchScript) or "
    "encoder.pt2 and decoder.pt2 (torch.export), each with its function as `forward`"
)
FIX = "export the files in this form in evaluation mode, and set the codec's `path`; nothing is downloaded"


class TorchScriptAutoencoder:
    """Encoder and decoder of a program, for tiles in [-1, 1]."""

    bands = None  # a program does not declare its input bands

    def __init__(self, settings: codecs.TorchScriptCodecConfig) -> None:
        self.has_logvar = settings.moments == "mean-logvar"
        self._low, self._high = settings.low, settings.high
        self._encode, self._decode = _load_programs(Path(settings.path))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return mean and log-variance, or latents and None, float32 (N, Z, h, w), of x (N, C, H, W) in [-1, 1]."""
        if (self._low, self._high) != (-1.0, 1.0):
            x = (x + 1.0) / 2.0 * (self._high - self._low) + self._low
        output = self._encode(x)
        if not self.has_logvar:
            return output.float(), None
        mean, logvar = output.chunk(2, dim=1) if isinstance(output, Tensor) else output
        return mean.float(), logvar.float()

    def decode(self, z: Tensor) -> Tensor:
        """Decode unscaled latents (N, Z, h, w) to float32 images (N, C, H, W), about [-1, 1] and not clipped."""
        out: Tensor = self._decode(z).float()  # (N, C, H, W)
        if (self._low, self._high) != (-1.0, 1.0):
            out = (out - self._low) / (self._high - self._low) * 2.0 - 1.0
        return out


def files_of(path: Path) -> list[Path]:
    """Return the files of a program: the file itself, or both in a folder; raise UserError if they do not exist."""
    if path.is_file():
        return [path]
    for pair in PAIRS:
        if all((path / name).is_file() for name in pair):
            return [path / name for name in pair]
    got = "a folder without these files" if path.is_dir() else "no such file or folder"
    raise user_error(f"autoencoder {path} is missing", got=got, expected=CONTRACT, fix=FIX)


def _load_programs(path: Path) -> tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]:
    programs = [_load(file) for file in files_of(path)]
    if len(programs) == 2:
        return programs[0], programs[1]
    absent = [name for name in ("encode", "decode") if not callable(getattr(programs[0], name, None))]
    if absent:
        got = f"a program without {' and '.join(absent)}"
        raise user_error(f"autoencoder {path} cannot be used", got=got, expected=CONTRACT, fix=FIX)
    return programs[0].encode, programs[0].decode


def _load(path: Path) -> Any:
    try:
        if content_of(path).fix:
            raise ValueError("no program")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer PyTorch versions warn of the end of TorchScript here
            if path.suffix == ".pt2":
                return torch.export.load(path).module()
            return torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    except Exception as error:  # a damaged archive raises many types
        message = f"autoencoder {path} cannot be read"
        raise unreadable(message, path, expected=CONTRACT, fix="copy or export the file again", error=error) from None


def cause(error: Exception) -> str:
    """Return the last line of a program's error, which is its cause; earlier lines are its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
