"""The DiT network: patch tokens, blocks with adaLN-Zero, and the final layer (Peebles & Xie 2023, figure 3).

Legend: N batch, C channels, T tokens, D width, K head width, E width of the hidden layer of the MLP, p side of a patch.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.core.logging import user_error
from dithc.engine import hcops
from dithc.model import token_blocks
from dithc.model.blocks import Attention, GatedMlp, Mlp, Rotary
from dithc.model.embeddings import (
    ConditionEmbedder,
    LabelEmbedder,
    Linear,
    PatchEmbedder,
    Silu,
    TimestepEmbedder,
    position_embedding,
    rotary_tables,
)
from dithc.model.fused_blocks import BlockChain, fuse_block, mark_final_layer
from dithc.model.gaussian import GaussianPrediction
from dithc.model.presets import DiTConfig, preset

EMBEDDING_STD = 0.02


class DiT(nn.Module):
    """Network that predicts the noise in a noisy latent image from the timestep and the label, built from `config`."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.x_embedder = PatchEmbedder(config.in_channels, width, config.patch_size)
        self.t_embedder = TimestepEmbedder(width)
        num_rows = config.num_classes + (config.null_label is not None)
        given = config.conditions, [name for name, _, _ in config.band_groups]
        self.y_embedder = ConditionEmbedder(num_rows, width, *given) if any(given) else LabelEmbedder(num_rows, width)
        self.pos_embed = nn.Parameter(torch.empty(1, config.num_tokens, width), requires_grad=False)
        rotary = rotary_tables(config.head_width, config.grid) if config.position_embedding == "rope" else (None, None)
        self.blocks = nn.ModuleList(Block(config, rotary) for _ in range(config.depth))
        self.final_layer = FinalLayer(width, config.patch_size**2 * config.out_channels, rms=config.norm == "rms")
        gaussian = GaussianPrediction(config.in_channels, config.size, config.band_groups)
        self.gaussian = gaussian if config.gaussian_prediction else None
        initialize(self)

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> Self:
        """Build a size of the paper, such as "DiT-S/2", with fields of `DiTConfig` overridden by name; see `preset`."""
        return cls(preset(name, overrides))

    def chain(self, *, to_patches: bool = False) -> BlockChain:
        """Return all blocks, and `to_patches` the last layer, as one callable without autograd; see `BlockChain`."""
        return BlockChain(self.blocks, last=self.final_layer if to_patches else None)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Predict the noise, followed by the raw interpolation of its log variance if sigma is learned.

        Args:
            x: (N, C, height, width), noisy latents. The result has the same size, and 2C channels with learned sigma.
            t: (N), timesteps, int or float.
            y: (N), int labels; `config.null_label` for unlabeled images and labels dropped by the trainer. With
                `config.conditions` or `config.band_groups` (N, 1 + K): the label, the numbers of all conditions, NaN for
                absent conditions, and the timestep of each group of bands, NaN for t.

        Raises:
            UserError: The shape of x differs from the channels and size of the model.
        """
        if x.dim() != 4 or tuple(x.shape[1:]) != (self.config.in_channels, *self.config.size):
            expected = ("N", self.config.in_channels, *self.config.size)
            fix = "build the model with these in_channels and input_size, or cut the input to fit"
            raise user_error("shape of the model input", got=tuple(x.shape), expected=expected, fix=fix)
        tokens, c = self.embed(x, t, y)
        for block in self.blocks:
            tokens = block(tokens, c)  # (N, T, D)
        patches = self.final_layer(tokens, c)  # (N, T, p*p*out)
        return self.image(patches, x, t, y)

    def embed(self, x: Tensor, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (N, T, D) and conditions (N, D) of the arguments of `forward`."""
        return self.x_embedder(x) + self.pos_embed, self.t_embedder(t) + self.y_embedder(y)

    def image(self, patches: Tensor, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Return the output (N, out, height, width) of patches (N, T, p*p*out), with the Gaussian prediction if any."""
        output = hcops.vector.unpatchify(patches, self.config.grid[0], self.config.patch_size)
        return output if self.gaussian is None else output + self.gaussian(x, t, y)


class Block(nn.Module):
    """Attention and MLP, each after a norm that the condition c shifts, scales and gates."""

    def __init__(self, config: DiTConfig, rotary: Rotary = (None, None)) -> None:
        super().__init__()
        width = config.hidden_size
        self.kind = config.block
        self.attn = Attention(width, config.num_heads, rotary=rotary, norm=config.qk_norm)
        self.mlp = (GatedMlp if config.mlp == "swiglu" else Mlp)(width, config.mlp_width)
        self.adaLN_modulation = nn.Sequential(Silu(), Linear(width, 6 * width))

    @fuse_block
    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Transform tokens x (N, T, D) under conditions c (N, D)."""
        rms = self.kind.norm == "rms"
        modulation: Tensor = self.adaLN_modulation(c)  # (N, 6D)
        shift_a, scale_a, gate_a, *rest = modulation.chunk(6, dim=1)  # (N, D) each
        normed, x = hcops.vector.adaln_and_stream(x, shift_a, scale_a, rms=rms)  # (N, T, D) each
        return self.transform(self.attn(normed, gate=gate_a, residual=x), *rest)  # (N, T, D)

    def transform(self, x: Tensor, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
        """Return x + gate * mlp(norm(x)), the part of the block after attention."""
        normed, x = hcops.vector.adaln_and_stream(x, shift, scale, rms=self.kind.norm == "rms")  # (N, T, D) each
        out: Tensor = self.mlp(normed, gate=gate, residual=x)
        return out  # (N, T, D)

    def dithc_recompute(self, forward: Callable[[Tensor, Tensor], Tensor], x: Tensor, c: Tensor) -> Tensor | None:
        """Return `forward(x, c)`, recomputed by parts of the tokens in the backward pass.

        None if the tokens are few, if weights are not contiguous fp32, or if a hook of a weight, which would run twice, or a
        compiler observes the pass.
        """
        weights = list(self.parameters())
        is_usual = all(weight.dtype is torch.float32 and weight.is_contiguous() for weight in weights)
        is_observed = torch.compiler.is_compiling() or any(weight._backward_hooks for weight in weights)
        if is_observed or not is_usual or x.shape[1] < training.PARTED_TOKENS:
            return None
        return token_blocks.run(self, forward, x, c)


class FinalLayer(nn.Module):
    """Norm shifted and scaled by the condition, then a projection of tokens to the pixels of their patches."""

    def __init__(self, width: int, out_features: int, *, rms: bool = False) -> None:
        super().__init__()
        self.rms = rms
        self.linear = Linear(width, out_features)
        self.adaLN_modulation = nn.Sequential(Silu(), Linear(width, 2 * width))

    @mark_final_layer
    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Project tokens x (N, T, D) under conditions c (N, D) to patches."""
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)  # (N, D) each
        patches: Tensor = self.linear(hcops.vector.adaln(x, shift, scale, rms=self.rms))
        return patches  # (N, T, p*p*out)


@torch.no_grad()
def initialize(model: DiT) -> None:
    """Set the initial weights of a training run (Peebles & Xie, section 3.2 and appendix A).

    Matrices are Xavier-uniform, biases zero, embeddings normal with std 0.02. Modulations, the last layer, and the last layer
    of each condition are zero, so that each block starts as the identity and the network predicts 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    projection = model.x_embedder.proj
    nn.init.xavier_uniform_(projection.weight.view(projection.weight.shape[0], -1))
    assert projection.bias is not None
    nn.init.zeros_(projection.bias)
    model.pos_embed.copy_(position_embedding(model.config.hidden_size, model.config.grid))
    nn.init.normal_(model.y_embedder.embedding_table.weight, std=EMBEDDING_STD)
    for layer in (model.t_embedder.mlp[0], model.t_embedder.mlp[2]):
        assert isinstance(layer, nn.Linear)
        nn.init.normal_(layer.weight, std=EMBEDDING_STD)
    zeroed = [block.adaLN_modulation[1] for block in model.blocks if isinstance(block, Block)]
    if isinstance(model.y_embedder, ConditionEmbedder):
        zeroed += [mlp[2] for mlp in model.y_embedder.conditions.values() if isinstance(mlp, nn.Sequential)]
    for layer in (*zeroed, model.final_layer.adaLN_modulation[1], model.final_layer.linear):
        assert isinstance(layer, nn.Linear)
        nn.init.zeros_(layer.weight)
