"""Network call distributed over ranks by rows of its batch.

N rows of a batch (images, or both branches of their guidance), n of this rank; Z latent channels, h, w latent.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dithc.engine.cftp import partition
from dithc.engine.hcops import token_shard
from dithc.model import DiT
from dithc.sample.parallel.rank_set import SINGLE, RankSet, cut


class ParallelDenoiser:
    """Distributed DiT for samplers, `(x (N, Z, h, w), t (N), y (N)) -> (N, Z or 2Z, h, w)` in fp32.

    Weights must not change; see `DiT.chain` otherwise. With the C kernels, a row's bits do not depend on other rows.
    """

    def __init__(
        self,
        model: DiT,
        *,
        bf16: bool = False,
        rows: RankSet = SINGLE,
        blocks: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        """Prepare this rank's rows of a network in evaluation mode, with products in bf16 if requested.

        `rows` are the ranks that share the rows of a batch. `blocks` are those of an earlier denoiser with the same model.
        """
        self.model = model
        # Other networks are called directly, without recorded blocks.
        if blocks is None and isinstance(model, DiT):
            blocks = model.chain(to_patches=True)
        self._blocks, self._bf16, self._rows = blocks, bf16, rows

    @torch.no_grad()
    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Return the complete output on every rank for x (N, Z, h, w), t (N), y (N)."""
        if len(x) < self._rows.size:  # too few rows to share: every rank computes all
            return self._forward_rows(x, t, y)
        local = partition(len(x), self._rows.size)[self._rows.rank]
        return self._rows.all_gather(self._forward_rows(x[local], t[local], y[local]), cut(len(x), self._rows.size))

    def _forward_rows(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        model = self.model
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16),
            token_shard.part_of(model.config.num_tokens),
        ):
            if self._blocks is None:
                whole: Tensor = model(x, t, y)
                return whole.float()
            tokens = model.x_embedder(x) + model.pos_embed  # (n, T, D)
            c = model.t_embedder(t) + model.y_embedder(y)  # (n, D)
            return model.image(self._blocks(tokens, c), x, t, y).float()
