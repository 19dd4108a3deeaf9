"""Models of any size with the structure of common third-party models: a ViT, and a decoder like Llama.

Legend: N batch, T tokens, D width, H heads, G heads of keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention with q, k and v as views of one projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (N, H, T, D / H) each
        out: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return out


class VitBlock(nn.Module):
    """Pre-norm block with the erf GELU, as in torch and timm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.0), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Vit(nn.Module):
    """Vision transformer (Dosovitskiy et al. 2021) with the mean of the tokens as class token; ViT-S/16 by default."""

    def __init__(
        self, *, width: int = 384, depth: int = 12, heads: int = 6, patch: int = 16, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(VitBlock(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)  # (N, T, D)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x.mean(1)))
        return out


class DecoderLayer(nn.Module):
    """Decoder layer with grouped queries, rotary embedding, causal mask, RMSNorm and SwiGLU (Touvron et al. 2023)."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, head_width = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * head_width, bias=False) for _ in range(2))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, t, d = x.shape
        y = self.norm1(x)
        q, k, v = (
            layer(y).view(n, t, heads, -1).transpose(1, 2)  # (N, H or G, T, D / H)
            for layer, heads in ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups))
        )
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, d))
        y = self.norm2(x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


class Decoder(nn.Module):
    """Causal language model."""

    def __init__(
        self,
        *,
        width: int = 512,
        depth: int = 8,
        heads: int = 8,
        groups: int = 2,
        hidden: int = 1376,
        words: int = 4096,
    ) -> None:
        super().__init__()
        self.words, self.pairs = nn.Embedding(words, width), width // heads // 2
        self.layers = nn.ModuleList(DecoderLayer(width, heads, groups, hidden) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)  # (N, T, D)
        rates = 10000.0 ** (-torch.arange(self.pairs) / self.pairs)
        angles = torch.arange(tokens.shape[1])[:, None] * rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # (T, pairs)
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.head(self.norm(x))
        return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
