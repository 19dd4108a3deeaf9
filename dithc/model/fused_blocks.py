"""Fusion of blocks into single kernel calls, if no external hook, wrapper or subclass must observe their submodules.

Legend: N batch, T tokens, D width, F features of a patch.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from dithc.engine import native
from dithc.engine.hcops import token_shard
from dithc.engine.hcops.blocks import fused, program
from dithc.model.blocks import Attention, GatedMlp, Mlp
from dithc.model.embeddings import Linear, LinearGelu, Silu

Forward = Callable[[Any, Tensor, Tensor], Tensor]


def fuse_block(forward: Forward) -> Forward:
    """Wrap a block's forward pass; run it as one kernel call if the kernels support it, with bitwise equal results."""

    @wraps(forward)
    def fused_forward(block: Any, x: Tensor, c: Tensor) -> Tensor:
        weights = _weights_of(block)
        if weights is None or not fused.accepts_block(x, c, weights):
            return forward(block, x, c)
        return fused.block(x, c, weights, _kind_of(block))

    fused_forward.is_fused = True  # type: ignore[attr-defined]
    return fused_forward


def mark_final_layer(forward: Forward) -> Forward:
    """Mark a forward pass as equal to `fused.final_layer`, so that a `BlockChain` may include it in its call."""
    forward.is_final_layer = True  # type: ignore[attr-defined]
    return forward


def _kind_of(block: Any) -> fused.BlockVariant:
    cos, sin = block.attn.rotary
    rms, swiglu = block.kind.norm == "rms", block.kind.mlp == "swiglu"
    return fused.BlockVariant(block.attn.num_heads, rms=rms, swiglu=swiglu, cos=cos, sin=sin)


MAX_FLOP = 2e11  # limit of one call: a second or two on one core, during which it cannot be interrupted
MAX_PROGRAMS = 4  # each holds the memory of a pass


class BlockChain:
    """Consecutive blocks, `(x (N, T, D), c (N, D)) -> (N, T, D)`, and with the final layer patches (N, T, F).

    No gradients. Results equal those of separate module calls bit for bit. If the C kernels support all blocks, a short
    pass is one call: recorded first, then replayed while all weights keep address and version. A longer pass is split.
    Writes that torch does not count (through `.data`, `.numpy()` or an address) and hooks registered later are not
    detected: create a new chain after them.
    """

    def __init__(
        self, blocks: Iterable[nn.Module], *, last: nn.Module | None = None, parent: "BlockChain | None" = None
    ) -> None:
        self._blocks: list[Any] = list(blocks)
        self._last = last
        self._packs: program.PackedWeights = program.PackedWeights() if parent is None else parent._packs
        self._memory: dict[int, list[Tensor]] = {} if parent is None else parent._memory  # of all programs, by thread
        weighted = [*self._blocks, *([] if last is None else [last])]
        self._weights = [
            (module._parameters, name)
            for part in weighted
            for module in part.modules()
            for name, weight in module._parameters.items()
            if weight is not None
        ]
        self._num_parameters = sum(weight.numel() for part in weighted for weight in part.parameters())
        self._state: tuple[tuple[int, int | None], ...] | None = None  # address and version of each weight
        self._programs: dict[Hashable, program.Program] = {}
        self._parts: dict[tuple[int, int], BlockChain] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, part: slice) -> "BlockChain":
        """Return a slice of the blocks as a cached chain with separate programs."""
        first, stop, _ = part.indices(len(self))
        if (first, stop) not in self._parts:
            last = self._last if stop == len(self) else None
            self._parts[first, stop] = BlockChain(self._blocks[first:stop], last=last, parent=self)
        return self._parts[first, stop]

    @torch.no_grad()
    def __call__(self, x: Tensor, c: Tensor) -> Tensor:
        if not fused.all_operators_use_c():
            return self._call_blocks(x, c)
        calls = -(-2 * self._num_parameters * x.shape[0] * x.shape[1] // MAX_FLOP)
        if calls > len(self):
            return self._call_blocks(x, c)
        if calls > 1:
            half = len(self) // 2
            return self[half:](self[:half](x, c), c)
        recorded = self._program(x, c)
        return self._call_blocks(x, c) if recorded is None else recorded(x, c)

    def _call_blocks(self, x: Tensor, c: Tensor) -> Tensor:
        for block in self._blocks:
            x = block(x, c)
        return x if self._last is None else self._last(x, c)

    def _program(self, x: Tensor, c: Tensor) -> program.Program | None:
        weights: list[Any] = [parameters[name] for parameters, name in self._weights]
        tables = [table for block in self._blocks for table in block.attn.rotary if table is not None]
        state = tuple((weight.data_ptr(), program.tensor_version(weight)) for weight in weights)
        if self._state not in (None, state):
            self._programs.clear()
            self._packs.drop({address for address, _ in self._state})
        self._state = state
        types = x.dtype, c.dtype, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        key = (
            x.shape,
            *types,
            token_shard.current_shard.tokens,
            native.context(),
            get_ident(),
            tuple(table.data_ptr() for table in tables),
        )
        if key not in self._programs and x.is_contiguous() and c.is_contiguous():
            candidates = [_unobserved_weights(block) for block in self._blocks]
            layers = [weights for weights in candidates if weights is not None and fused.accepts_block(x, c, weights)]
            last = None if self._last is None else _weights_of_last(self._last)
            accepts_last = self._last is None or (last is not None and fused.accepts_block(x, c, last))
            if len(layers) == len(self._blocks) and accepts_last:
                if len(self._programs) == MAX_PROGRAMS:
                    self._programs.pop(next(iter(self._programs)))  # the oldest
                kinds = [_kind_of(block) for block in self._blocks]
                memory = self._memory.setdefault(get_ident(), [])
                self._programs[key] = program.Program(layers, kinds, x, c, packs=self._packs, memory=memory, last=last)
        return self._programs.get(key)


def _unobserved_weights(block: Any) -> fused.BlockWeights | None:
    """Return `_weights_of` the block if the call of the block itself needs no observer either."""
    if not fused.is_plain(block, type(block)) or not hasattr(type(block).forward, "is_fused"):
        return None
    return _weights_of(block)


def _weights_of_last(layer: Any) -> fused.FinalLayerWeights | None:
    """Return the weights of the final layer under the conditions of `_unobserved_weights`."""
    is_observed = fused.has_global_hooks() or not fused.is_plain(layer, type(layer))
    if is_observed or not hasattr(type(layer).forward, "is_final_layer"):
        return None
    if not _is_condition(layer.adaLN_modulation) or not fused.is_plain(layer.linear, Linear):
        return None
    layers = (layer.adaLN_modulation[1], layer.linear)
    return fused.FinalLayerWeights(*(value for module in layers for value in (module.weight, module.bias)))


def _is_condition(layers: nn.Sequential) -> bool:
    """Return whether a modulation is a plain SiLU and linear layer without observers."""
    kinds = (Silu, Linear)
    return fused.is_plain(layers, nn.Sequential) and len(layers) == 2 and all(map(fused.is_plain, layers, kinds))


def _weights_of(block: Any) -> fused.BlockWeights | None:
    """Return the parameters of a block if its submodules are plain and have no observers."""
    is_plain = fused.is_plain
    if fused.has_global_hooks():
        return None
    condition, attention, mlp = block.adaLN_modulation, block.attn, block.mlp
    kind, first = (GatedMlp, Linear) if block.kind.mlp == "swiglu" else (Mlp, LinearGelu)
    if not _is_condition(condition) or not is_plain(attention, Attention) or not is_plain(mlp, kind):
        return None
    layers = (condition[1], attention.qkv, attention.proj, mlp.fc1 if first is LinearGelu else mlp.gate_up, mlp.fc2)
    kinds = (Linear, Linear, Linear, first, Linear)
    if not all(map(is_plain, layers, kinds)):
        return None
    values: list[Any] = [value for layer in layers for value in (layer.weight, layer.bias)]
    values += [attention.q_norm, attention.k_norm]
    return fused.BlockWeights(*values)
