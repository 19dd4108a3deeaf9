"""Embeddings of patches, positions, timesteps and labels in width D.

Legend: N batch, C channels, T tokens (T = rows * columns of patches), D width, p side of a patch.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dithc.engine import hcops

NUM_FREQUENCIES = 256  # features of the timestep embedding before its MLP (Peebles & Xie, appendix A)
MAX_PERIOD = 10_000.0
LEVEL = "level-"  # prefix of the name of a level; names of conditions contain no hyphen


class Linear(nn.Linear):
    """Linear layer computed by `hcops`. It is a module, so that external hooks and sharding can find it."""

    def forward(self, input: Tensor, *, gate: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        """Project input (..., D); with gate (N, F) and residual (N, T, F), return residual + gate * projection."""
        return hcops.linear(input, self.weight, self.bias, gate=gate, residual=residual)


class LinearGelu(nn.Linear):
    """Linear layer followed by the tanh GELU, as one operator."""

    def forward(self, input: Tensor) -> Tensor:
        return hcops.linear(input, self.weight, self.bias, gelu=True)


class Silu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return hcops.vector.silu(x)


class PatchProjection(nn.Conv2d):
    """Convolution with stride equal to its kernel size, computed as a matrix product."""

    def forward(self, input: Tensor) -> Tensor:
        patches = hcops.vector.patchify(input, self.kernel_size[0])  # (N, T, C*p*p)
        return hcops.linear(patches, self.weight.flatten(1), self.bias)  # (N, T, D)


class PatchEmbedder(nn.Module):
    """Embedding of an image as one token per patch, in row order."""

    def __init__(self, in_channels: int, hidden_size: int, patch_size: int) -> None:
        super().__init__()
        self.proj = PatchProjection(in_channels, hidden_size, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        """Embed images x (N, C, height, width)."""
        tokens: Tensor = self.proj(x)
        return tokens  # (N, T, D)


class TimestepEmbedder(nn.Module):
    """Embedding of a timestep: sines and cosines, always in fp32, then an MLP."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(NUM_FREQUENCIES, hidden_size), Silu(), Linear(hidden_size, hidden_size))

    def forward(self, t: Tensor) -> Tensor:
        """Embed integer or fractional timesteps t (N)."""
        weight = self.mlp[0].weight
        assert isinstance(weight, Tensor)
        embedding: Tensor = self.mlp(timestep_features(t).to(weight.dtype))
        return embedding  # (N, D)


class LabelEmbedder(nn.Module):
    """Embedding of a label. If training drops labels, the last row is the null label's."""

    def __init__(self, num_rows: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(num_rows, hidden_size)

    def forward(self, y: Tensor) -> Tensor:
        """Embed labels y (N): integers below the number of rows."""
        vectors: Tensor = self.embedding_table(y)
        return vectors  # (N, D)


class ConditionEmbedder(LabelEmbedder):
    """Embedding of a label, further conditions and levels: an MLP for each, with a last layer that starts at zero.

    A level is the timestep of a group of bands. Its MLP receives the features of a timestep.
    """

    def __init__(
        self, num_rows: int, hidden_size: int, conditions: Sequence[tuple[str, int]], levels: Sequence[str] = ()
    ) -> None:
        super().__init__(num_rows, hidden_size)
        self.widths = [width for _, width in conditions] + [1] * len(levels)
        conditions = [*conditions, *((f"{LEVEL}{name}", NUM_FREQUENCIES) for name in levels)]
        self.conditions = nn.ModuleDict(
            {
                name: nn.Sequential(Linear(width, hidden_size), Silu(), Linear(hidden_size, hidden_size))
                for name, width in conditions
            }
        )

    def forward(self, y: Tensor) -> Tensor:
        """Embed labels and numbers y (N, 1 + K), levels last. A condition with a NaN is absent and adds nothing."""
        label, numbers = y[:, 0], torch.split(y[:, 1:], self.widths, dim=1)
        vectors = super().forward(label.long())
        for (name, mlp), values in zip(self.conditions.items(), numbers, strict=True):
            is_known, given = torch.isfinite(values).all(dim=1, keepdim=True), values.nan_to_num()  # (N, 1), (N, k)
            features = timestep_features(given[:, 0]) if name.startswith(LEVEL) else given
            vectors = vectors + is_known * mlp(features.to(vectors.dtype))
        return vectors  # (N, D)


def timestep_features(t: Tensor) -> Tensor:
    """Return cos, then sin, of t in fp32, at frequencies exp(-log(MAX_PERIOD) i / half) as the released checkpoints."""
    half = NUM_FREQUENCIES // 2
    exponents = torch.arange(half, dtype=torch.float32, device=t.device) / half
    angles = t.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponents)  # (N, half)
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=1)  # (N, 2 * half)


def rotary_tables(head_width: int, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (T, K/2), fp32, that rotate queries and keys at each token of a grid (rows, columns).

    The first half of the K/2 pairs of a head rotates with the row, the second half with the column. This is the axial
    RoPE of EVA-02 (Fang et al. 2023) and LightningDiT (arXiv 2501.01423), with their period. Each half has K/4
    frequencies that fall geometrically from 1 radian per patch towards 1 / MAX_PERIOD (Su et al. 2021).
    """
    rows, columns = _axis_angles(grid, head_width // 4)
    half = (*grid, head_width // 4)
    angles = torch.cat([rows[:, None].expand(half), columns[None].expand(half)], dim=2).flatten(0, 1)  # (T, K/2)
    return angles.cos().float(), angles.sin().float()


def position_embedding(width: int, grid: tuple[int, int]) -> Tensor:
    """Return the fixed 2-D sine-cosine embedding (1, T, D) of a grid (rows, columns), the column's half first."""
    rows, columns = _axis_angles(grid, width // 4)
    by_row = torch.cat([rows.sin(), rows.cos()], dim=1)  # (rows, D/2)
    by_column = torch.cat([columns.sin(), columns.cos()], dim=1)  # (columns, D/2)
    half = (*grid, width // 2)
    both = torch.cat([by_column[None].expand(half), by_row[:, None].expand(half)], dim=2)  # (rows, columns, D)
    return both.reshape(1, -1, width).float()


def _axis_angles(grid: tuple[int, int], count: int) -> list[Tensor]:
    """Return angles (rows, F) and (columns, F), float64, of F = `count` frequencies that fall from 1 to 1 / MAX_PERIOD."""
    frequencies = MAX_PERIOD ** (-torch.arange(count, dtype=torch.float64) / count)
    return [torch.arange(side, dtype=torch.float64)[:, None] * frequencies for side in grid]
