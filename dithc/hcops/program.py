"""Blocks one after the other, and what is behind them, as one call of the kernels, recorded once for all passes of a shape.

Between two blocks Python takes some tenths of a millisecond: with 256 tokens of a small network 6 % of a pass, which each of the
ranks that share the tokens takes for itself.

Legend: N batch, T tokens, D width, F features of a patch.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from dithc.hcops import across, fused
from dithc.hcops.active import raw, say_default
from dithc.hcops.c import Packs, program, version_of
from dithc.hcops.part import part

__all__ = ["Packs", "Program", "version_of"]


class Program:
    """A pass through blocks, `(x (N, T, D), c (N, D)) -> (N, T, D or F)`, of one shape and type, without gradients.

    The weights' memory may not change between passes, nor their content.
    """

    def __init__(
        self,
        weights: Sequence[fused.BlockWeights],
        kinds: Sequence[fused.Kind],
        x: Tensor,
        c: Tensor,
        *,
        packs: Packs,
        memory: list[Tensor],
        last: fused.LastWeights | None = None,
    ) -> None:
        """Records the pass and runs nothing.

        Args:
            weights: of each block, for all of which `fused.block_serves` has agreed to such inputs.
            kinds: of each block.
            x: the stream, for its shape and type; dense.
            c: the condition, likewise.
            packs: where weights are kept as products read them, for other shapes too.
            memory: shared with the other programs of this thread, of which one runs at a time.
            last: of the layer behind the last block, for which it has agreed too; None: the pass ends with the block.

        Where tokens are shared (`part.across`), a pass is run at the turn at which it was recorded.
        """
        say_default()
        self._x, self._c = x.clone(), c.clone()
        self._across = part.across  # has memory that is read and written
        with program(packs, memory) as self._kernels:
            stream, active = self._x, raw("silu_forward")(self._c)  # (N, T, D), (N, D)
            self._kernels.keep(active)  # a layer may be made when its block is
            for modulation, of_block, kind in zip(self._modulations(active, weights), weights, kinds, strict=True):
                stream = fused.modulated(stream, modulation, of_block, kind)
                self._kernels.free_all_but(stream)
            if last is not None:
                stream = fused.last(stream, active, last, kinds[-1])
        self._out = stream
        self._turn = (0, 0) if self._across is None else self._across.turn

    def _modulations(self, active: Tensor, weights: Sequence[fused.BlockWeights]) -> Iterator[Tensor]:
        """Of each block, (N, 6D): its columns are shared by those who share the tokens, as all need all of them."""
        layers = [(of_block.modulation, of_block.modulation_bias) for of_block in weights]
        linears = across.linears_apart if self._across is None else self._across.linears
        return linears(active, layers, fused.type_of_products(self._x))

    def __call__(self, x: Tensor, c: Tensor) -> Tensor:
        """A pass; see above.

        Raises:
            MemoryError, ValueError: of the first kernel that failed, by name.
        """
        self._x.copy_(x)
        self._c.copy_(c)
        self._kernels.run()
        if self._across is not None:
            self._across.turn = self._turn
        return self._out.clone()
