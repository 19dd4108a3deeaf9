"""Blocks and the final layer as one recorded call of the kernels, for all passes of a shape.

Between two blocks Python takes some tenths of a millisecond: 6% of a pass with 256 tokens of a small network.

Legend: N batch, T tokens, D width, F features of a patch.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from dithc.engine.hcops.backend import log_default, raw
from dithc.engine.hcops.blocks import fused
from dithc.engine.hcops.c import PackedWeights, program, tensor_version

__all__ = ["PackedWeights", "Program", "tensor_version"]


class Program:
    """Recorded pass through blocks, of one shape and type, without gradients: x (N, T, D), c (N, D) -> (N, T, D or F).

    Address and content of the weights must not change between passes.
    """

    def __init__(
        self,
        weights: Sequence[fused.BlockWeights],
        kinds: Sequence[fused.BlockVariant],
        x: Tensor,
        c: Tensor,
        *,
        packs: PackedWeights,
        memory: list[Tensor],
        last: fused.FinalLayerWeights | None = None,
    ) -> None:
        """Record the pass without running it; `fused.accepts_block` has accepted all weights for inputs like x and c.

        Other shapes share the storage `packs`. Programs of this thread that never run concurrently share the result
        memory. Without `last` the pass ends with the last block.
        """
        log_default()
        self._x, self._c = x.clone(), c.clone()
        with program(packs, memory) as self._kernels:
            stream, active = self._x, raw("silu_forward")(self._c)  # (N, T, D), (N, D)
            self._kernels.buffers.keep(active)  # a layer may be computed when its block is recorded
            for modulation, block_weights, kind in zip(self._modulations(active, weights), weights, kinds, strict=True):
                stream = fused.modulated(stream, modulation, block_weights, kind)
                self._kernels.buffers.free_except(stream)
            if last is not None:
                stream = fused.final_layer(stream, active, last, kinds[-1])
        self._out = stream

    def _modulations(self, active: Tensor, weights: Sequence[fused.BlockWeights]) -> Iterator[Tensor]:
        """Yield the modulation (N, 6D) of each block."""
        dtype = fused.type_of_products(self._x)
        return (raw("linear_forward")(active, each.modulation, each.modulation_bias, dtype) for each in weights)

    def __call__(self, x: Tensor, c: Tensor) -> Tensor:
        """Run the pass; MemoryError or ValueError names the first kernel that failed."""
        self._x.copy_(x)
        self._c.copy_(c)
        self._kernels.run()
        return self._out.clone()
