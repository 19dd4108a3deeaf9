"""A network, and one variant of sampling with it, as built in a process.

Legend: N rows, Z latent channels, h, w latent; D width.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dithc import diffusion
from dithc.bench.environment import require
from dithc.model import DiT, DiTConfig
from dithc.sample.parallel import ParallelDenoiser, SamplingGroup

SEED, LABEL, TIMESTEP = 0, 7, 523
TRAINED_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class SamplingCase:
    """Sampling task; `tokens` is a square number, and `guidance` 1 runs only the conditional branch."""

    model: str
    overrides: Mapping[str, Any]
    tokens: int
    dtype: Literal["fp32", "bf16"]
    guidance: float
    steps: int

    def __str__(self) -> str:
        guided = f"guidance {self.guidance:g}" if self.guidance != 1 else "without guidance"
        return f"{self.tokens} tokens, {self.dtype}, {guided}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Entries of the result."""
        return {"tokens": self.tokens, "dtype": self.dtype, "guidance": self.guidance}

    @property
    def times(self) -> list[int]:
        """Descending timesteps of an image, spaced as in diffusers' schedulers."""
        return [TRAINED_STEPS // self.steps * step for step in reversed(range(self.steps))]


def config_of(cell: SamplingCase) -> DiTConfig:
    """Return the network configuration of a cell without allocating weights."""
    side = math.isqrt(max(cell.tokens, 0))
    is_valid = cell.tokens >= 1 and side * side == cell.tokens
    require(is_valid, "bench sampling --tokens", cell.tokens, "square numbers, such as 256, 1024, 4096")
    with torch.device("meta"):
        patch = DiT.from_preset(cell.model, **cell.overrides).config.patch_size
        return DiT.from_preset(cell.model, **{**cell.overrides, "input_size": side * patch}).config


def network(cell: SamplingCase) -> DiT:
    """Return the network of a cell with equal random weights in every process, including heads and gates."""
    model, generator = DiT(config_of(cell)), torch.Generator().manual_seed(SEED)
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=model.config.hidden_size**-0.5, generator=generator)
    return model.eval()


class DithcRunner:
    """dithc's sampler on one or several ranks."""

    def __init__(self, model: DiT, cell: SamplingCase, team: SamplingGroup) -> None:
        self._model, self._cell = model, cell
        self._shape = (model.config.in_channels, *model.config.size)
        self._x = initial_noise(self._shape)
        self._denoiser = ParallelDenoiser(
            model,
            bf16=cell.dtype == "bf16",
            rows=team.rows,
            tokens=team.tokens,
            over=team.over(model.config.num_tokens),
        )

    def step(self) -> Tensor:
        """Evaluate the network, with both branches if guided: (1, Z or 2Z, h, w) fp32."""
        return self._guided_denoiser()(self._x, torch.tensor([TIMESTEP]))

    def image(self) -> Tensor:
        """Return an image before decoding: (1, Z, h, w) fp32."""
        return diffusion.sample(
            "ddim",
            denoise=self._guided_denoiser(),
            schedule=diffusion.Schedule.linear(),
            steps=self._cell.steps,
            shape=self._shape,
            noise=[torch.Generator().manual_seed(SEED)],
            times=self._cell.times,
        )

    def _guided_denoiser(self) -> Callable[[Tensor, Tensor], Tensor]:
        config = self._model.config
        labels = torch.tensor([LABEL % config.num_classes])
        return diffusion.guided_denoiser(
            self._denoiser, labels, null_label=config.null_label, scale=self._cell.guidance
        )


def initial_noise(shape: tuple[int, ...]) -> Tensor:
    """Return the initial noise (1, Z, h, w) of an image."""
    return torch.randn((1, *shape), generator=torch.Generator().manual_seed(SEED))
