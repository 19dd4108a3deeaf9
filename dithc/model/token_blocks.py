"""Recomputation of a block whose attention output is projected, and passed through the MLP, in parts of the tokens.

Only attention relates tokens. The backward pass therefore keeps queries, keys, values and the output of attention for all
tokens, but the tensors of the other layers only for a part of the tokens (Luo et al. 2025, StreamBP). Gradients
are exact up to the order of sums.

Legend: N batch, T tokens, D width.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, autograd, nn

from dithc.engine import hcops
from dithc.engine.memory import output_pool

PART_TOKENS = 512


def run(block: Any, forward: Callable[[Tensor, Tensor], Tensor], x: Tensor, c: Tensor) -> Tensor:
    """Return `forward(x, c)` of a block; keep only x (N, T, D) and c (N, D) for the backward pass."""
    weights = [weight for weight in block.parameters() if weight.requires_grad]
    out: Tensor = _TokenBlocks.apply(block, forward, x, c, *weights)  # type: ignore[no-untyped-call]
    return out  # (N, T, D)


class _TokenBlocks(autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, block: Any, forward: Callable[[Tensor, Tensor], Tensor], x: Tensor, c: Tensor, *weights: nn.Parameter
    ) -> Tensor:
        ctx.block, ctx.weights = block, weights
        ctx.autocast = {"enabled": torch.is_autocast_enabled("cpu"), "dtype": torch.get_autocast_dtype("cpu")}
        ctx.save_for_backward(x, c)
        return forward(x, c)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, c = ctx.saved_tensors
        sums = _Sums(ctx.weights, [node for node, _ in ctx.next_functions[2:]])
        with torch.enable_grad(), torch.autocast("cpu", **ctx.autocast), hcops.optimizer.summing(sums.places):
            dx, dc = _backward(ctx.block, x, c, dy, sums)
        return None, None, dx, dc, *sums.values


def _backward(block: Any, x: Tensor, c: Tensor, dy: Tensor, sums: "_Sums") -> tuple[Tensor, Tensor]:
    """Return the gradients of x and c, and add the gradients of the weights to `sums`."""
    x, c = _leaf(x), _leaf(c)
    modulation: Tensor = block.adaLN_modulation(c)  # (N, 6D)
    parts = [_leaf(part) for part in modulation.chunk(6, dim=1)]  # (N, D) each
    normed, stream = hcops.vector.adaln_and_stream(
        x, parts[0], parts[1], rms=block.kind.norm == "rms"
    )  # (N, T, D) each
    heads = block.attn.heads(normed)  # (N, T, 3D)
    del normed
    out = hcops.attention(leaf := _leaf(heads), block.attn.num_heads)  # (N, T, D)
    dstream, dout, dparts = torch.empty_like(x), torch.empty_like(out), [torch.zeros_like(part) for part in parts]
    dy = dy.contiguous()
    for image, start in product(range(x.shape[0]), range(0, x.shape[1], PART_TOKENS)):
        part = slice(image, image + 1), slice(start, start + PART_TOKENS)  # contiguous
        inputs, given = [_leaf(out[part]), _leaf(x[part])], [_leaf(one[image : image + 1]) for one in parts[2:]]
        y = block.transform(block.attn.proj(inputs[0], gate=given[0], residual=inputs[1]), *given[1:])
        dout_part, dstream_part, *given = sums.backward([y], [dy[part]], [*inputs, *given])
        _copy(dout_part, dout[part])
        _copy(dstream_part, dstream[part])
        for total, value in zip(dparts[2:], given, strict=True):
            total[image] += value[0]
    del y, inputs
    (dheads,) = torch.autograd.grad(out, leaf, dout)
    del out, leaf, dout
    dx, dparts[0], dparts[1] = sums.backward([heads, stream], [dheads, dstream], [x, *parts[:2]])
    (dc,) = sums.backward([modulation], [torch.cat(dparts, dim=1)], [c])
    return dx, dc


def _copy(source: Tensor, target: Tensor) -> None:
    """Copy on this thread, because the threads of torch spin afterwards on the cores that the kernels need."""
    np.copyto(target.view(torch.int16).numpy(), source.contiguous().view(torch.int16).numpy())


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


class _Sums:
    """Sums of the gradients of weights over parts: matrices in their places, to which products add directly."""

    def __init__(self, weights: Sequence[nn.Parameter], nodes: Sequence[Any]) -> None:
        self._weights = weights
        self.values: list[Tensor | None] = [None] * len(weights)
        self.places = dict[nn.Parameter, tuple[Tensor, bool]]()
        for weight, node in zip(weights, nodes, strict=True):
            place, accumulates = hcops.optimizer.gradient_place(weight, node)
            if place is None and weight.dim() > 1:
                place = output_pool().empty(weight.shape, weight.dtype)
            if place is not None:
                self.places[weight] = place, accumulates

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Add the gradients of the weights; return the gradients of `inputs`."""
        found = torch.autograd.grad(outputs, [*inputs, *self._weights], gradients, allow_unused=True)
        with torch.no_grad():
            for number, (weight, value) in enumerate(zip(self._weights, found[len(inputs) :], strict=True)):
                if value is not None:
                    self.values[number] = self._sum(weight, self.values[number], value)
        return found[: len(inputs)]

    def _sum(self, weight: nn.Parameter, total: Tensor | None, value: Tensor) -> Tensor:
        if weight not in self.places:
            return value if total is None else total.add_(value)
        place, accumulates = self.places[weight]
        self.places[weight] = place, True
        if value.data_ptr() == place.data_ptr():
            return place
        return place.add_(value) if accumulates else place.copy_(value)
