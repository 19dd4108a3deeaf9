"""Linear layers of a model as matrix products.

Legend: M rows of the input (tokens of the batch), K its features, F output features.
"""

from typing import Literal, NamedTuple

from dithc.bench.rooflines import FLOP_PER_MAC
from dithc.model import DiTConfig

# Order and names of the paper's table 4.
MODULES = ("qkv", "out", "up", "down", "condition")
# Features of the timestep embedding before its first layer (Peebles & Xie, appendix A).
NUM_FREQUENCIES = 256

Pass = Literal["forward", "grad_input", "grad_weight"]
PASSES: tuple[Pass, ...] = ("forward", "grad_input", "grad_weight")


class LinearShape(NamedTuple):
    """Linear layer y (M, F) = x (M, K) W (F, K)^T."""

    name: str
    rows: int
    in_features: int
    out_features: int

    @property
    def flop(self) -> int:
        """Operations of each of its three products."""
        return FLOP_PER_MAC * self.rows * self.in_features * self.out_features

    def product(self, kind: Pass) -> tuple[int, int, int]:
        """Return (m, n, k) of y = x W^T, of dx = dy W, or of dW = dy^T x."""
        m, k, f = self.rows, self.in_features, self.out_features
        return {"forward": (m, f, k), "grad_input": (m, k, f), "grad_weight": (f, k, m)}[kind]


def module_layers(config: DiTConfig, *, batch: int) -> list[LinearShape]:
    """Return the five modules of table 4, which form a block."""
    width, tokens = config.hidden_size, batch * config.num_tokens
    return [
        LinearShape("qkv", tokens, width, 3 * width),
        LinearShape("out", tokens, width, width),
        LinearShape("up", tokens, width, config.mlp_rows),
        LinearShape("down", tokens, config.mlp_width, width),
        LinearShape("condition", batch, width, 6 * width),
    ]


def all_layers(config: DiTConfig, *, batch: int) -> list[LinearShape]:
    """Return all linear layers: blocks, patches, timesteps and output."""
    width, tokens, area = config.hidden_size, batch * config.num_tokens, config.patch_size**2
    return [
        *module_layers(config, batch=batch),
        LinearShape("patches", tokens, area * config.in_channels, width),
        LinearShape("timestep 1", batch, NUM_FREQUENCIES, width),
        LinearShape("timestep 2", batch, width, width),
        LinearShape("last condition", batch, width, 2 * width),
        LinearShape("last", tokens, width, area * config.out_channels),
    ]
