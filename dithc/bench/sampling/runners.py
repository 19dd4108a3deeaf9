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
from dithc.config import evaluations
from dithc.model import DiT, DiTConfig
from dithc.sample.parallel import ParallelDenoiser, SamplingGroup

SEED, LABEL, TIMESTEP = 0, 7, 523
TRAINED_STEPS = 1000
Cache = evaluations.FirstBlockCacheConfig | evaluations.TaylorCacheConfig | None


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
    """dithc's sampler on one or several ranks.

    `block_share` is the fraction of blocks that the last image computed with a cache; None without a cache.
    """

    def __init__(self, model: DiT, cell: SamplingCase, team: SamplingGroup, *, cache: Cache = None) -> None:
        self._model, self._cell, self._team, self._cache = model, cell, team, cache
        self._shape = (model.config.in_channels, *model.config.size)
        self._over = team.over(model.config.num_tokens)
        self._x = initial_noise(self._shape)
        self._denoiser = self._new_denoiser()
        self.block_share: float | None = None

    def step(self) -> Tensor:
        """Evaluate the network, with both branches if guided: (1, Z or 2Z, h, w) fp32."""
        return self._guided_denoiser()(self._x, torch.tensor([TIMESTEP]))

    def image(self) -> Tensor:
        """Return an image before decoding: (1, Z, h, w) fp32."""
        latent = diffusion.sample(
            "ddim",
            denoise=self._guided_denoiser(),
            schedule=diffusion.Schedule.linear(),
            steps=self._cell.steps,
            shape=self._shape,
            noise=[torch.Generator().manual_seed(SEED)],
            times=self._cell.times,
        )
        if self._cache is not None:
            computed, total = self._denoiser.tally[:2].tolist()
            self.block_share = computed / total
        return latent

    def _guided_denoiser(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the guided network with a new cache, which is valid for one sampling run."""
        config = self._model.config
        if self._cache is not None:
            self._denoiser = self._new_denoiser()
        labels = torch.tensor([LABEL % config.num_classes])
        return diffusion.guided_denoiser(
            self._denoiser, labels, null_label=config.null_label, scale=self._cell.guidance
        )

    def _new_denoiser(self) -> ParallelDenoiser:
        return ParallelDenoiser(
            self._model,
            bf16=self._cell.dtype == "bf16",
            rows=self._team.rows,
            tokens=self._team.tokens,
            over=self._over,
            cache=self._cache,
        )


def initial_noise(shape: tuple[int, ...]) -> Tensor:
    """Return the initial noise (1, Z, h, w) of an image."""
    return torch.randn((1, *shape), generator=torch.Generator().manual_seed(SEED))
