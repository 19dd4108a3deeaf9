"""Autoencoders of diffusers, read from local files only. No other module imports diffusers.

Legend: N batch, C bands, H, W tile; Z latent channels, h, w latent (H, W divided by the factor).
"""

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import user_error
from dithc.core.tensor_files import read_external
from dithc.core.weights import DIFFUSERS_FILE, files_of
from dithc.latents.codecs.torchscript import cause

CONFIG_FILE = "config.json"
MAX_BATCH_PIXELS = 1 << 20
DISTRIBUTION = "latent_dist"
# Image autoencoder classes, with the attribute of the `encode` result that holds the posterior or the latents.
CLASSES = {
    "AutoencoderKL": DISTRIBUTION,
    "AsymmetricAutoencoderKL": DISTRIBUTION,
    "AutoencoderKLFlux2": DISTRIBUTION,
    "AutoencoderKLHunyuanImage": DISTRIBUTION,
    "AutoencoderTiny": "latents",
    "AutoencoderDC": "latent",
    "VQModel": "latents",
}
Numbers = list[float]


class Normalization(NamedTuple):
    """Shift subtracted from latents, then their factor: a number, or one per channel; None if unknown."""

    shift: Numbers
    scale: Numbers | None


@cache
def _autoencoder_module() -> Any:
    """Return the autoencoder module of diffusers, imported on first use (seconds) in offline mode."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    import diffusers.models.autoencoders as autoencoders
    from diffusers.utils.logging import set_verbosity_error

    set_verbosity_error()
    return autoencoders


class DiffusersAutoencoder:
    """Autoencoder of diffusers that returns the moments of its posterior instead of samples."""

    def __init__(self, net: Any, *, memory_format: torch.memory_format) -> None:
        self.net, self._memory_format = net.to(memory_format=memory_format), memory_format
        self._output_attribute = CLASSES[type(net).__name__]
        self.has_logvar = self._output_attribute == DISTRIBUTION  # a posterior rather than plain latents
        self.bands, self.latent_channels = int(net.config.in_channels), int(net.config.latent_channels)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        fix: str,
        classes: tuple[str, ...] = tuple(CLASSES),
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Self:
        """Read a folder in the diffusers layout; `classes` are the accepted members of `CLASSES`.

        `memory_format` is the memory order of weights and images, which affects rounding. Raises UserError with `fix`
        if a file is missing, damaged or of another network.
        """
        kinds = f"an {classes[0]}" if len(classes) == 1 else f"one of {', '.join(classes)}"
        layout = f"{CONFIG_FILE} and {DIFFUSERS_FILE}, or its shards, of {kinds} in diffusers' layout"
        try:
            network_files(folder)
        except (OSError, ValueError) as error:
            message = f"autoencoder folder {folder} is incomplete"
            raise user_error(message, got=error, expected=layout, fix=fix) from error
        state = dict(read_external(folder)[0])
        try:
            settings = parse_json(require_regular_file(folder / CONFIG_FILE).read_text())
            kind = settings.get("_class_name")
            if kind not in classes:
                raise ValueError(f"{CONFIG_FILE} describes {kind!r}")
            if not hasattr(_autoencoder_module(), kind):
                raise ValueError(f"the installed version of diffusers has no {kind}")
            net = getattr(_autoencoder_module(), kind).from_config(settings)
            net._fix_state_dict_keys_on_load(state)  # attention names before diffusers 0.12
            names = net.state_dict().keys()
            if mismatched := sorted(names ^ state.keys()):
                raise ValueError(f"{len(mismatched)} missing or unexpected weights, such as {mismatched[0]}")
            net.load_state_dict(state)
        except Exception as error:  # diffusers raises a dozen types for wrong settings
            message = f"autoencoder in {folder} cannot be loaded"
            raise user_error(message, got=cause(error), expected=layout, fix=fix) from error
        return cls(net.eval().requires_grad_(False), memory_format=memory_format)

    @property
    def downsampling_factor(self) -> int:
        """Side of a tile over side of its latent, for an AutoencoderKL."""
        return int(2 ** (len(self.net.config.block_out_channels) - 1))

    @property
    def normalization(self) -> Normalization:
        """Normalization of latents in the diffusers pipelines of this network.

        The batch norm of FLUX.2 has running statistics of latent patches, from which those of each channel follow.
        """
        config = self.net.config
        if config.get("batch_norm_eps") is not None:
            means, variances = (
                values.double().view(self.latent_channels, -1)  # (Z, p^2)
                for values in (self.net.bn.running_mean, self.net.bn.running_var)
            )
            mean = means.mean(dim=1)  # (Z)
            variance = variances.mean(dim=1) + means.var(dim=1, correction=0)
            return Normalization(mean.tolist(), (variance + config.batch_norm_eps).rsqrt().tolist())
        scale, mean, std = (config.get(name) for name in ("scaling_factor", "latents_mean", "latents_std"))
        scales = None if scale is None else [float(scale)]
        if std is not None:
            scales = [(scale or 1.0) / float(value) for value in std]
        shift = [config.get("shift_factor") or 0.0] if mean is None else mean
        return Normalization([float(value) for value in shift], scales)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return mean and log-variance, or latents and None, of float32 x (N, C, H, W) in [-1, 1].

        They are float32 (N, Z, h, w), not scaled. The log-variance is clamped to [-30, 20] as in diffusers.
        """
        output = getattr(self.net.encode(x.contiguous(memory_format=self._memory_format)), self._output_attribute)
        return (output.mean.float(), output.logvar.float()) if self.has_logvar else (output.float(), None)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """Decode unscaled latents (N, Z, h, w) to float32 images (N, C, H, W), about [-1, 1] and not clipped."""
        out: torch.Tensor = self.net.decode(z.contiguous(memory_format=self._memory_format)).sample  # (N, C, H, W)
        return out.float()

    @staticmethod
    def max_batch_size(side: int) -> int:
        """Return the number of images of this side per pass that keeps activations within a few GiB."""
        return max(1, MAX_BATCH_PIXELS // side**2)


def network_files(folder: Path) -> list[Path]:
    """Return settings and weights in a diffusers folder; OSError for missing files, ValueError for an invalid index."""
    if not folder.is_dir():
        raise FileNotFoundError("no such folder")
    return [require_regular_file(folder / CONFIG_FILE), *files_of(folder)]
