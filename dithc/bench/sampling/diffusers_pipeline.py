"""diffusers' DiTPipeline with the weights of dithc's network in one process, as an alternative, and its autoencoder."""

import math
import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dithc.bench.sampling.runners import LABEL, SEED, TIMESTEP, TRAINED_STEPS, SamplingCase, initial_noise
from dithc.model import DiT, diffusers_keys

NULL_LABEL = 1000  # hard-coded in DiTPipeline
# Stable Diffusion's autoencoder: channels of each level relative to the first level, groups of a norm.
WIDTH_FACTORS, GROUPS = (1, 2, 4, 4), 32


def skip_reason(model: DiT, cell: SamplingCase) -> str | None:
    """Return the reason why diffusers cannot sample a cell here, or None."""
    if cell.guidance != 1 and model.config.null_label != NULL_LABEL:
        return f"DiTPipeline uses {NULL_LABEL} as the null label, and the network {model.config.null_label}"
    try:
        diffusers_keys.settings(model.config)
        _package()
    except (ImportError, RuntimeError, ValueError) as error:
        return f"{error}".replace("\n", " ")[:200]
    return None


class DiffusersRunner:
    """Transformer of diffusers with the official network's frequencies, and its pipeline without the decoder.

    In bf16, both weights and activations are bf16.
    """

    def __init__(self, model: DiT, cell: SamplingCase) -> None:
        package = _package()
        config, self._cell = model.config, cell
        settings = {key: value for key, value in diffusers_keys.settings(config).items() if key != "_class_name"}
        net = package.DiTTransformer2DModel(**settings)
        keys = net.load_state_dict(diffusers_keys.to_diffusers(model.state_dict(), config), strict=False)
        mismatched = [name for name in (*keys.missing_keys, *keys.unexpected_keys) if name != "pos_embed.pos_embed"]
        assert not mismatched, f"weights that exist in one of the two classes only: {mismatched}"
        for block in net.transformer_blocks:
            block.norm1.emb.time_proj.downscale_freq_shift = 0
        self._net = net.eval().to(torch.bfloat16 if cell.dtype == "bf16" else torch.float32)
        self._channels, self._shape = config.in_channels, (config.in_channels, *config.size)
        self._null, self._label = config.null_label, LABEL % config.num_classes
        betas = {"beta_start": 1e-4, "beta_end": 2e-2, "beta_schedule": "linear"}
        scheduler = package.DDIMScheduler(num_train_timesteps=TRAINED_STEPS, clip_sample=False, **betas)
        self._decoder = _NoDecoder()
        self._pipeline = package.DiTPipeline(self._net, self._decoder, scheduler)
        self._pipeline.set_progress_bar_config(disable=True)

    @torch.no_grad()
    def step(self) -> Tensor:
        """See `DithcRunner.step`. Guidance follows DiTPipeline."""
        x = initial_noise(self._shape).to(self._net.dtype)
        is_guided = self._cell.guidance != 1
        labels = torch.tensor([self._label, self._null] if is_guided else [self._label])
        times = torch.full((len(labels),), TIMESTEP)
        output: Tensor = self._net(x.expand(len(labels), -1, -1, -1), timestep=times, class_labels=labels).sample
        if is_guided:
            eps, variances = output[:, : self._channels], output[:1, self._channels :]
            output = torch.cat([eps[1:] + self._cell.guidance * (eps[:1] - eps[1:]), variances], dim=1)
        return output.float()

    def image(self) -> Tensor:
        """See `DithcRunner.image`."""
        self._pipeline(
            class_labels=[self._label],
            guidance_scale=self._cell.guidance,
            generator=torch.Generator().manual_seed(SEED),
            num_inference_steps=self._cell.steps,
            output_type="np",
        )
        return self._decoder.latents.float()


def _package() -> Any:
    """Import diffusers in offline mode, without dtype warnings."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import_module("diffusers.utils.logging").set_verbosity_error()
    package = import_module("diffusers")
    assert package.DiTPipeline  # imported on first use
    return package


def autoencoder(width: int) -> Any:
    """Return an autoencoder like Stable Diffusion's with `width` channels (SD has 128). Latents have 1/8 of the side."""
    levels = len(WIDTH_FACTORS)
    return _package().AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=tuple(width * factor for factor in WIDTH_FACTORS),
        layers_per_block=2,
        latent_channels=4,
        norm_num_groups=math.gcd(width, GROUPS),
    )


class _NoDecoder(nn.Module):
    """Stand-in for the decoder of the pipeline that stores its input."""

    config = SimpleNamespace(scaling_factor=1.0)
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.latents = torch.empty(0)

    def decode(self, latents: Tensor) -> Any:
        self.latents = latents
        return SimpleNamespace(sample=latents)
