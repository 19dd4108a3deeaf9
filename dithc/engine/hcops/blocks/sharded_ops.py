"""Attention and linear layers with tokens or columns split across processes that share memory.

Legend: N batch, t tokens of this process, T all tokens, D width, H heads, F output features, L layers.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dithc.engine import native
from dithc.engine.hcops.c import library, matrix


def attention_in(
    memory: Tensor, qkv: Tensor, num_heads: int, *, first: int, barrier: Callable[[Any], None]
) -> tuple[Tensor, Tensor]:
    """Compute attention over keys and values of all processes, as C kernels in one sequence.

    `memory` (N, T, 2D) is shared and has qkv's type: keys, then values. qkv (N, t, 3D) contains the tokens from `first`
    on. `barrier` records the barrier of the ranks. The caller keeps both results until the sequence has run.
    """
    n, t, width = qkv.shape
    size, d, num_keys = qkv.element_size(), width // 3, memory.shape[1]
    calls = library.functions()
    calls.hc_copy_blocks(
        *(native.context(), n, t, 2 * d * size, qkv.data_ptr() + d * size, t * width * size, width * size),
        *(memory.data_ptr() + first * 2 * d * size, num_keys * 2 * d * size, 2 * d * size),
    )
    barrier(calls)
    return matrix.attention_over(qkv, memory[:, :, :d], memory[:, :, d:], num_heads)


def linears_in(
    memory: Tensor,
    x: Tensor,
    layers: Sequence[tuple[Tensor, Tensor]],
    *,
    columns: slice,
    barrier: Callable[[Any], None],
) -> None:
    """Compute `columns` of linear layers of x (N, D), equal on all processes, into shared memory (L, N, F)."""
    calls = library.functions()
    for shared, (weight, bias) in zip(memory, layers, strict=True):
        local = matrix.linear_forward(x, weight[columns], bias[columns], memory.dtype)  # (N, f)
        n, row = len(x), local[0].nbytes
        target = shared[:, columns]
        calls.hc_copy_blocks(
            *(native.context(), 1, n, row, local.data_ptr(), n * row, row),
            *(target.data_ptr(), n * shared[0].nbytes, shared[0].nbytes),
        )
    barrier(calls)


def linears_apart(x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
    """Compute all columns of each layer in this process, on demand; yield (N, F) in `dtype`."""
    return (matrix.linear_forward(x, *layer, dtype) for layer in layers)
