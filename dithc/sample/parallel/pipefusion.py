"""PipeFusion: image patches pass through stages of a network in a pipeline (arXiv 2405.14430).

A patch attends to earlier patches of this call and to later patches of the previous call; each stage stores their keys
and values for its blocks. With the C kernels, the result therefore does not depend on the number of stages. Warm-up
calls, and calls with a single patch, use complete images and equal the plain network bitwise; stages then pipeline over
rows of the batch. The pipeline drains at the end of each call: with M patches and N stages the utilization is
M / (M + N - 1). Each patch is sent once per stage boundary, and all stages receive the output.

n rows of a batch; T tokens of an image, t of a patch, D width, p side of a patch of pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dithc.config import evaluations
from dithc.core.logging import user_error
from dithc.engine.cftp import partition
from dithc.engine.hcops.blocks import sharded_ops
from dithc.model import DiT
from dithc.sample.parallel.attention import UnsharedAttention
from dithc.sample.parallel.rank_set import RankSet

Unit = tuple[slice, slice]
"""Rows and tokens that go through a stage at once."""


class StaleKvAttention(UnsharedAttention):
    """Attention of a patch over all keys and values, with the latest values of other tokens, per block."""

    in_sequence = True

    def __init__(self, num_tokens: int) -> None:
        self._tokens = self.most_tokens = num_tokens
        self._key_values: dict[int, Tensor] = {}  # (n, T, 2D) each: keys, then values
        self._block, self._num_rows = 0, 0
        self._rows, self._token_slice = slice(0), slice(0)
        self._kept: Any = None

    def select(self, block: int, unit: Unit, *, num_rows: int) -> None:
        """Select the next call: block number, unit, and the total number of rows."""
        self._block, (self._rows, self._token_slice), self._num_rows = block, unit, num_rows

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        width = qkv.shape[2] // 3
        if self._block not in self._key_values:  # the first call writes the complete memory
            self._key_values[self._block] = qkv.new_empty(self._num_rows, self._tokens, 2 * width)
        memory = self._key_values[self._block][self._rows]
        mixed, *self._kept = sharded_ops.attention_with(memory, qkv, num_heads, first=self._token_slice.start)
        return mixed


def _check(name: str, got: int, limit: int, name_of_limit: str) -> None:
    if got > limit:
        expected, fix = f"at most the {limit} {name_of_limit}", f"lower it to {limit}"
        raise user_error(f"pipefusion.{name}", got=got, expected=expected, fix=fix)


class PipeFusionStage:
    """Calls of a network in one sampling run on the same rows; `keys` is this stage's attention for `token_shard.part_of`."""

    def __init__(self, model: DiT, settings: evaluations.PipeFusionConfig, stages: RankSet) -> None:
        tokens, depth, degree = model.config.num_tokens, len(model.blocks), settings.pipefusion_parallel_degree
        _check("pipefusion_parallel_degree", degree, depth, "blocks of the network, at least one per stage")
        _check("num_pipeline_patch", settings.patches, tokens, "tokens of an image, at least one per patch")
        self.keys = StaleKvAttention(tokens)
        self._model, self._stages, self._warmup = model, stages, settings.warmup_steps
        self._patches = partition(tokens, settings.patches)
        self._blocks = list(enumerate(model.blocks))[partition(depth, stages.size)[stages.rank]]
        self._calls, self._rows = 0, 0

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Return patches (n, T, p*p*out), fp32, on every stage, of latents (n, Z, h, w), timesteps (n) and labels (n)."""
        if self._rows not in (0, len(x)):
            raise user_error(
                "rows per network call in a sampling run with pipefusion",
                got=f"{len(x)}, {self._rows} before",
                expected="the same rows in every call: each row attends to its stored keys and values",
                fix="remove `pipefusion`, or use a sampler that keeps the rows",
            )
        model, stages = self._model, self._stages
        is_last, units = stages.rank + 1 == stages.size, self._units(len(x))
        self._rows, self._calls = len(x), self._calls + 1
        patches, c = split_patches(model, x), model.t_embedder(t) + model.y_embedder(y)  # (n, D)
        config = model.config
        out = torch.empty(len(x), config.num_tokens, config.patch_size**2 * config.out_channels)
        receive, sends = self._begin_receive(units, 0), []
        for number, (rows, part) in enumerate(units):
            if receive is None:
                tokens = embed_patches(model, patches[rows], part)
            else:
                tokens = receive()
                receive = self._begin_receive(units, number + 1)  # arrives while this unit is computed
            tokens = self._run_blocks(tokens, c[rows], (rows, part))
            if is_last:
                out[rows, part] = model.final_layer(tokens, c[rows]).float()
            else:
                sends.append(stages.isend(tokens, to=stages.rank + 1, tag=number))
        for wait in sends:
            wait()
        return stages.broadcast(out, source=stages.size - 1)

    def _units(self, rows: int) -> Sequence[Unit]:
        if self._calls >= self._warmup and len(self._patches) > 1:
            return [(slice(0, rows), patch) for patch in self._patches]
        tokens = slice(0, self._model.config.num_tokens)
        if self._stages.size == 1:
            return [(slice(0, rows), tokens)]
        return [(slice(row, row + 1), tokens) for row in range(rows)]

    def _begin_receive(self, units: Sequence[Unit], number: int) -> Callable[[], Tensor] | None:
        """Begin to receive the tokens (., t, D) of a unit; None on the first stage, and after the last unit."""
        if self._stages.rank == 0 or number == len(units):
            return None
        rows, part = units[number]
        shape = rows.stop - rows.start, part.stop - part.start, self._model.config.hidden_size
        empty = torch.empty(shape, dtype=self._model.pos_embed.dtype)  # data type of the token stream, in any autocast
        return self._stages.irecv(empty, source=self._stages.rank - 1, tag=number)

    def _run_blocks(self, tokens: Tensor, c: Tensor, unit: Unit) -> Tensor:
        with rotary_of(self._model, unit[1]):
            for number, block in self._blocks:
                self.keys.select(number, unit, num_rows=self._rows)
                tokens = block(tokens, c)
        return tokens


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
