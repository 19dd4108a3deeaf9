"""The one place diffusers enters: its AutoencoderKL built, read and written, from local files only.

Legend: N batch, C bands, H, W tile; Z latent channels, h, w latent (H, W divided by the factor).
"""

import hashlib
import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch

from dithc.log import problem

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "diffusion_pytorch_model.safetensors"
NORM_GROUPS = 2
INITIAL_LOGVAR = -6.0
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


class Autoencoder:
    """An AutoencoderKL that gives the moments of its posterior instead of samples of it.

    Attributes:
        net: the module of diffusers, in channels-last memory order: on CPUs its convolutions are then about four times
            as fast in fp32 (measured on tiles of 32 and 64 pixels, 12 bands).
    """

    def __init__(self, net: Any) -> None:
        self.net = net.to(memory_format=torch.channels_last)

    @classmethod
    def build(cls, *, bands: int, latent_channels: int, channels: list[int], layers_per_block: int) -> Self:
        """An untrained network, initialised from torch's generator; each level after the first halves the side.

        Four choices were measured by validation PSNR, one seed each. No attention in the middle: it gained nothing (-0.9 dB
        after 400 steps), and without it the cost is linear in pixels. The posterior starts narrow (log-variance -6, not 0):
        noise as strong as the signal hides it for hundreds of steps (+3.1 dB after 400). Two groups of channels in each
        normalisation: a few channels normalised by themselves lose their level, which is the colour of the tile, and 8
        groups take 1.5 times as long (+1.2 dB in a minute of one core; 32 groups are worse again). Residual branches start
        at zero, so that the signal passes both halves unharmed from the first step (+0.9 dB in the same time).
        """
        levels = len(channels)
        net = _diffusers()(
            in_channels=bands,
            out_channels=bands,
            down_block_types=("DownEncoderBlock2D",) * levels,
            up_block_types=("UpDecoderBlock2D",) * levels,
            block_out_channels=tuple(channels),
            layers_per_block=layers_per_block,
            latent_channels=latent_channels,
            norm_num_groups=math.gcd(NORM_GROUPS, *channels),
            mid_block_add_attention=False,
        )
        with torch.no_grad():
            net.quant_conv.weight[latent_channels:] *= 0.1
            net.quant_conv.bias[latent_channels:] = INITIAL_LOGVAR
            for name, parameter in net.named_parameters():
                if ".resnets." in name and ".conv2." in name:
                    parameter.zero_()
        return cls(net)

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
            kind = json.loads((folder / CONFIG_FILE).read_text()).get("_class_name")
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

    def save(self, folder: Path, *, scale: float) -> None:
        """Writes config.json (with `scale` as scaling_factor) and the weights into an existing folder.

        Raises:
            OSError: the disk is full or not writable.
        """
        from safetensors import SafetensorError

        self.net.register_to_config(scaling_factor=scale)
        try:
            self.net.save_pretrained(str(folder), safe_serialization=True)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        (folder / WEIGHTS_FILE).chmod((folder / CONFIG_FILE).stat().st_mode)  # safetensors lets only the owner read

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

    @torch.no_grad()
    def standardise(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        """Makes each latent channel of mean 0 and standard deviation 1 without changing any reconstruction.

        The affine map goes into the 1x1 convolutions on either side of the latent, which exist for this; a diffusion
        model then sees channels of equal weight.

        Args:
            mean, std: (Z,) of sampled latents as they are now.
        """
        channels = self.latent_channels
        before, after = self.net.quant_conv, self.net.post_quant_conv
        before.weight[:channels] /= std.view(-1, 1, 1, 1)
        before.bias[:channels] = (before.bias[:channels] - mean) / std
        before.bias[channels:] -= 2.0 * std.log()
        after.bias += after.weight[:, :, 0, 0] @ mean
        after.weight *= std.view(1, -1, 1, 1)


def autoencoder_digest(folder: Path, *, scale: float) -> str:
    """First 12 hex digits of the SHA-256 over weights, configuration and scale: what decides every latent."""
    digest = hashlib.sha256(json.dumps({"scale": scale}).encode())
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        with (folder / name).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]
