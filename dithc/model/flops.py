"""Operation counts per image, in both conventions used by the paper's figures.

Legend: N batch, T tokens, D width, p side of a patch.
"""

from typing import NamedTuple

from dithc.model.embeddings import NUM_FREQUENCIES
from dithc.model.presets import DiTConfig

FLOP_PER_MAC = 2  # a multiply-accumulate is two floating-point operations
TRAINING_OVER_FORWARD = 3  # backward computes two products, of input and weight gradients, per forward product


class Flops(NamedTuple):
    """Floating-point operations per image: matrix products only, without recomputation."""

    forward_linear: int
    """Forward pass, linear layers only."""
    forward_total: int
    """Forward pass, linear layers and both products of attention."""

    @property
    def training_linear(self) -> int:
        """Forward and backward pass, linear layers only: section 5.6 of the paper (687 GFLOP for XL/2)."""
        return TRAINING_OVER_FORWARD * self.forward_linear

    @property
    def training_total(self) -> int:
        """Forward and backward pass, with attention (711.7 GFLOP for XL/2)."""
        return TRAINING_OVER_FORWARD * self.forward_total


def flops_per_image(config: DiTConfig) -> Flops:
    width, tokens, area = config.hidden_size, config.num_tokens, config.patch_size**2
    per_token = 4 * width * width + width * (config.mlp_rows + config.mlp_width)  # qkv and proj; both layers of the MLP
    block = tokens * per_token + 6 * width * width  # and adaLN
    ends = tokens * area * (config.in_channels + config.out_channels) * width  # x_embedder, final layer
    condition = NUM_FREQUENCIES * width + width * width + 2 * width * width  # t_embedder; final adaLN
    linear = FLOP_PER_MAC * (config.depth * block + ends + condition)
    attention = FLOP_PER_MAC * config.depth * 2 * tokens * tokens * width  # q k^T and its product with v
    return Flops(forward_linear=linear, forward_total=linear + attention)
