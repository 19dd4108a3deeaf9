"""Arithmetic of one image, in the two conventions that the paper's figures mix.

Legend: N batch, T tokens, D width, p side of a patch.
"""

from typing import NamedTuple

from dithc.model.embed import NUM_FREQUENCIES
from dithc.model.presets import DiTConfig

FLOP_PER_MAC = 2  # a multiply-accumulate is two floating-point operations
TRAINING_OVER_FORWARD = 3  # backward computes two products (input and weight gradients) for each one of forward


class Flops(NamedTuple):
    """Floating-point operations for one image; matrix products only, no recomputation counted."""

    forward_linear: int
    """Forward pass, linear layers alone."""
    forward_total: int
    """Forward pass, linear layers and the two products of attention."""

    @property
    def training_linear(self) -> int:
        """Forward and backward, linear layers alone: the paper's section 5.6 (687 GFLOP for XL/2)."""
        return TRAINING_OVER_FORWARD * self.forward_linear

    @property
    def training_total(self) -> int:
        """Forward and backward, with attention (711.7 GFLOP for XL/2)."""
        return TRAINING_OVER_FORWARD * self.forward_total


def flops_per_image(config: DiTConfig) -> Flops:
    """Counts the matrix products of one image through the model that `config` describes."""
    width, tokens, area = config.hidden_size, config.num_tokens, config.patch_size**2
    per_token = 4 * width * width + width * (config.mlp_rows + config.mlp_width)  # qkv and proj; both layers of the MLP
    block = tokens * per_token + 6 * width * width  # and adaLN
    ends = tokens * area * (config.in_channels + config.out_channels) * width  # x_embedder, final layer
    condition = NUM_FREQUENCIES * width + width * width + 2 * width * width  # t_embedder; final adaLN
    linear = FLOP_PER_MAC * (config.depth * block + ends + condition)
    attention = FLOP_PER_MAC * config.depth * 2 * tokens * tokens * width  # q k^T and its product with v
    return Flops(forward_linear=linear, forward_total=linear + attention)
