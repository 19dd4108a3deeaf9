"""The one place diffusers enters: its AutoencoderKL, read from local files only.

Legend: N batch, C bands, H, W tile; Z latent channels, h, w latent (H, W divided by the factor).
"""

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch

from dithc.log import problem
from dithc.sealed import parse, plain

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "diffusion_pytorch_model.safetensors"
PIXELS_AT_ONCE = 1 << 20


@cache
def _diffusers() -> Any:
    """The class AutoencoderKL, imported on first use (seconds) and told first never to ask the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
    from diffusers.utils.logging import set_verbosity_error

    set_verbosity_error()
    return AutoencoderKL


class DiffusersKl:
    """An AutoencoderKL that gives the moments of its posterior instead of samples of it.

    Attributes:
        net: the module of diffusers, in channels-last memory order: on CPUs its convolutions are then about four times
            as fast in fp32 (measured on tiles of 32 and 64 pixels, 12 bands).
    """

    def __init__(self, net: Any) -> None:
        self.net = net.to(memory_format=torch.channels_last)

    @classmethod
    def load(cls, folder: Path, *, remedy: str) -> Self:
        """Reads a folder in diffusers' layout.

        Raises:
            UserError: a file is missing, damaged, or of another kind of network; `remedy` says what to do.
        """
        wanted = f"{CONFIG_FILE} and {WEIGHTS_FILE} of an AutoencoderKL in diffusers' layout"
        missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if not (folder / name).is_file()]
        if missing:
            got = f"no {' and no '.join(missing)}" if folder.is_dir() else "no such folder"
            raise problem(f"autoencoder folder {folder} is incomplete", got=got, expected=wanted, remedy=remedy)
        try:
            kind = parse(plain(folder / CONFIG_FILE).read_text()).get("_class_name")
            if kind != "AutoencoderKL":
                raise ValueError(f"{CONFIG_FILE} describes {kind!r}")
            net, report = _diffusers().from_pretrained(
                str(folder),
                local_files_only=True,
                use_safetensors=True,
                low_cpu_mem_usage=False,
                output_loading_info=True,
            )
            wrong = [str(key) for part in ("missing_keys", "unexpected_keys") for key in report[part]]
            if wrong:
                raise ValueError(f"{len(wrong)} missing or unexpected weights, such as {wrong[0]}")
        except Exception as error:  # diffusers and safetensors raise a dozen types for a damaged file
            got = str(error).partition("\n")[0] or type(error).__name__
            raise problem(
                f"autoencoder in {folder} cannot be loaded", got=got, expected=wanted, remedy=remedy
            ) from error
        return cls(net.eval().requires_grad_(False))

    @property
    def bands(self) -> int:
        """Bands of an image."""
        return int(self.net.config.in_channels)

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return int(self.net.config.latent_channels)

    @property
    def factor(self) -> int:
        """Side of a tile over side of its latent."""
        return int(2 ** (len(self.net.config.block_out_channels) - 1))

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log-variance of the posterior; the latter clamped to [-30, 20] as AutoencoderKL does.

        Args:
            x: float32 (N, C, H, W) in [-1, 1].

        Returns:
            Two float32 (N, Z, h, w), not scaled.
        """
        x = x.contiguous(memory_format=torch.channels_last)  # (N, C, H, W)
        posterior = self.net.encode(x).latent_dist
        return posterior.mean.float(), posterior.logvar.float()  # (N, Z, h, w) each

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """The image of an unscaled latent: (N, Z, h, w) to float32 (N, C, H, W), about [-1, 1] but not clipped."""
        z = z.contiguous(memory_format=torch.channels_last)  # (N, Z, h, w)
        out: torch.Tensor = self.net.decode(z).sample  # (N, C, H, W)
        return out.float()

    def images_at_once(self, side: int) -> int:
        """How many images of this side one pass may hold, so that activations stay within a few GiB."""
        return max(1, PIXELS_AT_ONCE // side**2)


def digest_of(folder: Path, *, scale: float) -> str:
    """First 12 hex digits of the SHA-256 over weights, configuration and scale: what decides every latent."""
    digest = hashlib.sha256(json.dumps({"scale": scale}).encode())
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        with (folder / name).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]
