"""Which blocks run as one call of the kernels: those of whose parts nobody outside has to see the calls.

Legend: N batch, T tokens, D width.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

from torch import Tensor, nn

from dithc.config import training
from dithc.hcops import fused
from dithc.model.embed import Linear, LinearGelu, Silu
from dithc.model.parts import Attention, GatedMlp, Mlp


class Parts(Protocol):
    """A block: what it is made of, and by which kind."""

    kind: training.BlockKind
    adaLN_modulation: nn.Sequential
    attn: Attention
    mlp: Mlp | GatedMlp


Forward = Callable[[Any, Tensor, Tensor], Tensor]


def in_one_call(forward: Forward) -> Forward:
    """The forward pass of a block, part by part; in one call of the kernels, with the same bits, where these serve it whole."""

    @wraps(forward)
    def whole(block: Parts, x: Tensor, c: Tensor) -> Tensor:
        weights = _weights_of(block)
        if weights is None or not fused.block_serves(x, c, weights):
            return forward(block, x, c)
        attention, kind = block.attn, block.kind
        (cos, sin), rms, swiglu = attention.rotary, kind.norm == "rms", kind.mlp == "swiglu"
        return fused.block(x, c, weights, num_heads=attention.num_heads, rms=rms, swiglu=swiglu, cos=cos, sin=sin)

    return whole


def _weights_of(block: Parts) -> fused.BlockWeights | None:
    """The parameters, where nobody outside has to see the calls of the parts."""
    is_plain = fused.is_plain
    if fused.all_are_seen():
        return None
    condition, attention, mlp = block.adaLN_modulation, block.attn, block.mlp
    kind, first = (GatedMlp, Linear) if block.kind.mlp == "swiglu" else (Mlp, LinearGelu)
    wholes = is_plain(condition, nn.Sequential), is_plain(attention, Attention), is_plain(mlp, kind)
    if not all(wholes) or [type(part) for part in condition] != [Silu, Linear] or not is_plain(condition[0], Silu):
        return None
    layers = (condition[1], attention.qkv, attention.proj, *mlp.layers)
    kinds = (Linear, Linear, Linear, first, Linear)
    if not all(is_plain(layer, kind) for layer, kind in zip(layers, kinds, strict=True)):
        return None
    values: list[Any] = [value for layer in layers for value in (layer.weight, layer.bias)]
    values += [attention.q_norm, attention.k_norm]
    return fused.BlockWeights(*values)
