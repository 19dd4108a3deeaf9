"""Autoencoders as programs: TorchScript, or graphs that torch.export wrote.

Contract of the files: `encode` takes float32 tiles (N, C, H, W) between `low` and `high` and returns latents (N, Z, h, w); with
`moments: mean-logvar` mean and log-variance, as a pair or as (N, 2 Z, h, w). `decode` takes latents (N, Z, h, w) and returns
tiles of that range. Both are deterministic, and the same in batches of any size.

Such a file is a program: opening it, and every batch, runs what is in it with the user's rights. The configuration is not read
before it says that the user trusts it.

Legend: N batch, C bands, H, W tile; Z latent channels, h, w latent.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dithc.config import codecs
from dithc.log import problem
from dithc.weights import content_of, unreadable

PAIRS = ("encoder.pt", "decoder.pt"), ("encoder.pt2", "decoder.pt2")
CONTRACT = (
    "a TorchScript file with methods `encode` and `decode`, or a folder with encoder.pt and decoder.pt (TorchScript) or "
    "encoder.pt2 and decoder.pt2 (torch.export), whose `forward` does the one or the other"
)
FIX = "write the files so from the network in evaluation mode, and set the codec's `path`; nothing is downloaded"


class ScriptedNetwork:
    """The two halves of a program, for tiles in [-1, 1].

    Attributes:
        has_logvar: whether it gives a log-variance.
        bands: None; a program does not say what it takes.
    """

    bands = None

    def __init__(self, settings: codecs.Torchscript) -> None:
        self.has_logvar = settings.moments == "mean-logvar"
        self._low, self._high = settings.low, settings.high
        self._encode, self._decode = _halves(Path(settings.path))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean and log-variance, float32 (N, Z, h, w), of x (N, C, H, W) in [-1, 1]; latents and None without `has_logvar`."""
        if (self._low, self._high) != (-1.0, 1.0):
            x = (x + 1.0) / 2.0 * (self._high - self._low) + self._low
        given = self._encode(x)
        if not self.has_logvar:
            return given.float(), None
        mean, logvar = given.chunk(2, dim=1) if isinstance(given, Tensor) else given
        return mean.float(), logvar.float()

    def decode(self, z: Tensor) -> Tensor:
        """The image of an unscaled latent: (N, Z, h, w) to float32 (N, C, H, W), about [-1, 1] but not clipped."""
        out: Tensor = self._decode(z).float()  # (N, C, H, W)
        if (self._low, self._high) != (-1.0, 1.0):
            out = (out - self._low) / (self._high - self._low) * 2.0 - 1.0
        return out


def files_of(path: Path) -> list[Path]:
    """Return the files of a program: itself, or the two in a folder; raise UserError if they do not exist."""
    if path.is_file():
        return [path]
    for pair in PAIRS:
        if all((path / name).is_file() for name in pair):
            return [path / name for name in pair]
    got = "a folder without such files" if path.is_dir() else "no such file or folder"
    raise problem(f"autoencoder {path} is missing", got=got, expected=CONTRACT, fix=FIX)


def _halves(path: Path) -> tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]:
    """What encodes and what decodes."""
    programs = [_load(one) for one in files_of(path)]
    if len(programs) == 2:
        return programs[0], programs[1]
    lacks = [name for name in ("encode", "decode") if not callable(getattr(programs[0], name, None))]
    if lacks:
        got = f"a program without {' and '.join(lacks)}"
        raise problem(f"autoencoder {path} cannot be used", got=got, expected=CONTRACT, fix=FIX)
    return programs[0].encode, programs[0].decode


def _load(path: Path) -> Any:
    try:
        if content_of(path).fix:
            raise ValueError("no program")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer PyTorch versions announce the end of TorchScript here
            if path.suffix == ".pt2":
                return torch.export.load(path).module()
            return torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    except Exception as error:  # a damaged archive raises a dozen types
        what = f"autoencoder {path} cannot be read"
        raise unreadable(what, path, expected=CONTRACT, fix="copy or export the file again", error=error) from None


def cause(error: Exception) -> str:
    """The last line of a program's error is the cause; the ones before are its own stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
