"""Components of a block: attention over the tokens and MLPs, each with its gated residual connection.

Legend: N batch, T tokens, D width, K head width, E width of the hidden layer of the MLP.
"""

import torch
from torch import Tensor, nn

from dithc.engine import hcops
from dithc.engine.hcops.blocks import fused
from dithc.model.embeddings import Linear, LinearGelu

Rotary = tuple[Tensor | None, Tensor | None]  # cosines and sines (T, K/2), constants; or None


class Attention(nn.Module):
    """Self-attention over all tokens of an image, with the gated residual connection."""

    def __init__(self, width: int, num_heads: int, *, rotary: Rotary = (None, None), norm: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.rotary = rotary
        self.q_norm, self.k_norm = (nn.Parameter(torch.ones(width // num_heads)) if norm else None for _ in range(2))
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Tensor, *, gate: Tensor, residual: Tensor) -> Tensor:
        """Return residual + gate * attention(x); x and residual (N, T, D), gate (N, D)."""
        out: Tensor = self.proj(hcops.attention(self.heads(x), self.num_heads), gate=gate, residual=residual)
        return out  # (N, T, D)

    def heads(self, x: Tensor) -> Tensor:
        """Return queries, keys and values (N, T, 3D) of x (N, T, D)."""
        qkv: Tensor = self.qkv(x)
        (cos, sin), (q_norm, k_norm) = self.rotary, (self.q_norm, self.k_norm)
        if cos is None and q_norm is None:
            return qkv
        return hcops.vector.rotate_heads(qkv, self.num_heads, cos=cos, sin=sin, query_weight=q_norm, key_weight=k_norm)


class Mlp(nn.Module):
    """Two linear layers with a tanh GELU between them, and the gated residual connection."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = LinearGelu(width, hidden)
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Tensor, *, gate: Tensor, residual: Tensor) -> Tensor:
        """Return residual + gate * mlp(x); x and residual (N, T, D), gate (N, D)."""
        first, second = self.fc1, self.fc2
        if fused.is_plain(first, LinearGelu) and fused.is_plain(second, Linear):
            return fused.mlp(x, first.weight, first.bias, second.weight, second.bias, gate=gate, residual=residual)
        out: Tensor = second(first(x), gate=gate, residual=residual)
        return out  # (N, T, D)


class GatedMlp(nn.Module):
    """Two linear layers with a SwiGLU between them (Shazeer 2020), and the gated residual connection."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = Linear(width, 2 * hidden)  # first the rows passed to SiLU, then the rows that they gate
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Tensor, *, gate: Tensor, residual: Tensor) -> Tensor:
        """Return residual + gate * mlp(x); x and residual (N, T, D), gate (N, D)."""
        hidden = hcops.vector.swiglu(self.gate_up(x))  # (N, T, E)
        out: Tensor = self.fc2(hidden, gate=gate, residual=residual)
        return out  # (N, T, D)
