"""A network, and one way to sample with it: what a contender is made of in a process.

Legend: N rows, Z latent channels, h, w latent; D width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from dithc import diffusion
from dithc.log import problem
from dithc.model import DiT, DiTConfig
from dithc.parallel import Denoiser, Team

SEED, LABEL, TIMESTEP = 0, 7, 523
TRAINED_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is sampled.

    Attributes:
        model: a preset.
        overrides: fields of it to change.
        tokens: of an image, a square number.
        dtype: of the products.
        guidance: 1 for the network alone.
        steps: of an image.
    """

    model: str
    overrides: Mapping[str, Any]
    tokens: int
    dtype: Literal["fp32", "bf16"]
    guidance: float
    steps: int

    def __str__(self) -> str:
        guided = f"guidance {self.guidance:g}" if self.guidance != 1 else "not guided"
        return f"{self.tokens} tokens, {self.dtype}, {guided}"

    @property
    def times(self) -> list[int]:
        """The timesteps of an image, falling: as far from each other as those of diffusers' schedulers."""
        return [TRAINED_STEPS // self.steps * step for step in reversed(range(self.steps))]


class Way(Protocol):
    """A way to sample."""

    def step(self) -> Tensor:
        """A call of the network, or of both branches of its guidance: (1, Z or 2Z, h, w) fp32."""

    def image(self) -> Tensor:
        """A whole image, not decoded: (1, Z, h, w) fp32."""


def config_of(cell: Cell) -> DiTConfig:
    """What the network of a cell is made of; no memory is taken for weights.

    Raises:
        UserError: an unknown preset or field, or tokens that make no square.
    """
    side = math.isqrt(max(cell.tokens, 0))
    if cell.tokens < 1 or side * side != cell.tokens:
        raise problem(
            "bench sampling --tokens",
            got=cell.tokens,
            expected="square numbers, such as 256, 1024, 4096",
            remedy="correct --tokens",
        )
    with torch.device("meta"):
        patch = DiT.from_preset(cell.model, **cell.overrides).config.patch_size
        return DiT.from_preset(cell.model, **{**cell.overrides, "input_size": side * patch}).config


def network(cell: Cell) -> DiT:
    """The network of a cell, the same weights in every process: all drawn, heads and gates too."""
    model, generator = DiT(config_of(cell)), torch.Generator().manual_seed(SEED)
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=model.config.hidden_size**-0.5, generator=generator)
    return model.eval()


class Ours:
    """dithc's, on one rank or on several."""

    def __init__(self, model: DiT, cell: Cell, team: Team) -> None:
        config, self._cell = model.config, cell
        self._shape = (config.in_channels, *config.size)
        denoiser = Denoiser(
            model,
            bf16=cell.dtype == "bf16",
            rows=team.rows,
            tokens=team.tokens,
            over=team.over(config.num_tokens),
        )
        labels = torch.tensor([LABEL % config.num_classes])
        self._denoise = diffusion.guided(denoiser, labels, null_label=config.null_label, scale=cell.guidance)
        self._x = first_noise(self._shape)

    def step(self) -> Tensor:
        """See `Way`."""
        return self._denoise(self._x, torch.tensor([TIMESTEP]))

    def image(self) -> Tensor:
        """See `Way`."""
        return diffusion.sample(
            "ddim",
            denoise=self._denoise,
            schedule=diffusion.Schedule.linear(TRAINED_STEPS),
            steps=self._cell.steps,
            shape=self._shape,
            noise=[torch.Generator().manual_seed(SEED)],
            times=self._cell.times,
        )


def first_noise(shape: tuple[int, ...]) -> Tensor:
    """The noise (1, Z, h, w) that an image starts from."""
    return torch.randn((1, *shape), generator=torch.Generator().manual_seed(SEED))
