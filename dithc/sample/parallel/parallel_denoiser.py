"""Network call distributed over ranks: by rows of its batch first, then by tokens of each image.

N rows of a batch (images, or both branches of their guidance), n of this rank; Z latent channels, h, w latent; T
tokens, t of this rank, D width, p side of a patch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dithc.engine.cftp import partition
from dithc.engine.hcops import token_shard
from dithc.model import DiT
from dithc.sample.parallel.rank_set import SINGLE, RankSet, cut
from dithc.sample.parallel.shared_buffers import lost_rank_error


class ParallelDenoiser:
    """Distributed DiT for samplers, `(x (N, Z, h, w), t (N), y (N)) -> (N, Z or 2Z, h, w)` in fp32.

    Weights must not change; see `DiT.chain` otherwise. With the C kernels, a row's bits depend neither on other rows
    nor on the token layout.
    """

    def __init__(
        self,
        model: DiT,
        *,
        bf16: bool = False,
        rows: RankSet = SINGLE,
        tokens: RankSet = SINGLE,
        over: token_shard.ShardedAttention | None = None,
        blocks: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        """Prepare this rank's parts of a network in evaluation mode, with products in bf16 if requested.

        `rows` and `tokens` are the ranks that share the rows of a batch and the tokens of an image (with attention `over`
        them). `blocks` are those of an earlier denoiser with the same model and `over`.
        """
        self.model = model
        # Other networks are called directly, without a partition.
        if blocks is None and isinstance(model, DiT):
            blocks = model.chain(to_patches=True)
        self._blocks = blocks
        self._bf16, self._rows, self._tokens, self._attention = bf16, rows, tokens, over
        self._lengths = cut(model.config.num_tokens, tokens.size)

    @torch.no_grad()
    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Return the complete output on every rank for x (N, Z, h, w), t (N), y (N)."""
        if len(x) < self._rows.size:  # too few rows to share: every rank computes all
            return self._forward_rows(x, t, y)
        local = partition(len(x), self._rows.size)[self._rows.rank]
        return self._rows.all_gather(self._forward_rows(x[local], t[local], y[local]), cut(len(x), self._rows.size))

    def _forward_rows(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        config = self.model.config
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16),
            token_shard.part_of(config.num_tokens, self._attention),
        ):
            if self._blocks is None:
                whole: Tensor = self.model(x, t, y)
                return whole.float()
            try:
                strip = self._forward_tokens(x, t, y)
            except ValueError as error:
                if self._attention is None or (lost := self._attention.lost_rank()) is None:
                    raise
                raise lost_rank_error(error, lost) from error
            patches = self._tokens.all_gather(strip, self._lengths, dim=1)  # (n, T, p*p*out)
            return self.model.image(patches, x, t, y).float()

    def _forward_tokens(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        model, blocks = self.model, self._blocks
        assert blocks is not None
        local = partition(model.config.num_tokens, self._tokens.size)[self._tokens.rank]
        if self._tokens.size == 1:
            tokens = model.x_embedder(x) + model.pos_embed  # (n, T, D)
        else:
            tokens = embed_patches(model, split_patches(model, x), local)  # (n, t, D)
        c = model.t_embedder(t) + model.y_embedder(y)  # (n, D)
        with rotary_of(model, local):
            if self._attention is not None:
                self._attention.begin()
            return blocks(tokens, c)


def split_patches(model: DiT, x: Tensor) -> Tensor:
    """Rearrange latents (n, Z, h, w) into one row of patches (n, Z, p, T, p); its slices have complete tokens."""
    p, (rows, columns) = model.config.patch_size, model.config.grid
    return x.reshape(*x.shape[:2], rows, p, columns, p).permute(0, 1, 3, 2, 4, 5).flatten(3, 4)


def embed_patches(model: DiT, patches: Tensor, part: slice) -> Tensor:
    """Return the tokens (n, t, D) of a strip of patches (n, Z, p, T, p)."""
    tokens: Tensor = model.x_embedder(patches[:, :, :, part].flatten(3)) + model.pos_embed[:, part]
    return tokens


@contextmanager
def rotary_of(model: DiT, part: slice) -> Iterator[None]:
    """Restrict the rotary tables of all blocks to these tokens during the context."""
    whole = [block.attn.rotary for block in model.blocks]  # type: ignore[union-attr]
    if part == slice(0, model.config.num_tokens) or all(table is None for tables in whole for table in tables):  # type: ignore[union-attr]
        yield
        return
    try:
        for block, tables in zip(model.blocks, whole, strict=True):
            block.attn.rotary = tuple(table if table is None else table[part] for table in tables)  # type: ignore[union-attr]
        yield
    finally:
        for block, tables in zip(model.blocks, whole, strict=True):
            block.attn.rotary = tables  # type: ignore[union-attr]
