"""Blocks one after the other as one call of the kernels, recorded once for all passes of a shape.

Between two blocks Python takes some tenths of a millisecond: with 256 tokens of a small network 6 % of a pass, which each of the
ranks that share the tokens takes for itself.

Legend: N batch, T tokens, D width.
"""

from collections.abc import Callable, Iterable

from torch import Tensor

from dithc.hcops.c import program


class Program:
    """A pass through blocks, `(x (N, T, D), c (N, D)) -> (N, T, D)`, of one shape and type, without gradients.

    The weights' content may change between passes, their memory may not.
    """

    def __init__(self, blocks: Iterable[Callable[[Tensor, Tensor], Tensor]], x: Tensor, c: Tensor) -> None:
        """Records the pass and runs nothing.

        Args:
            blocks: for all of which `fused.block_serves` has agreed to such inputs.
            x: the stream, for its shape and type; dense.
            c: the condition, likewise.
        """
        self._x, self._c = x.clone(), c.clone()
        with program() as self._kernels:
            stream = self._x
            for block in blocks:
                stream = block(stream, self._c)
                self._kernels.free_all_but(stream)
        self._out = stream

    def __call__(self, x: Tensor, c: Tensor) -> Tensor:
        """A pass; see above.

        Raises:
            MemoryError, ValueError: of the first kernel that failed, by name.
        """
        self._x.copy_(x)
        self._c.copy_(c)
        self._kernels.run()
        return self._out.clone()
