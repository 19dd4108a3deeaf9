"""The operators as callers see them: one contract each, served by the kernel that is active.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features.
"""

from types import TracebackType

from torch import Tensor

from dithc.hcops.table import FALLBACK, Choice, choose
from dithc.log import logger

# The only state of the room: which kernel serves each operator in this process. `use` is its only writer.
_active: dict[str, Choice] = choose(FALLBACK)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias.

    Args:
        x: (..., D).
        weight: (F, D).
        bias: (F) or None.

    Returns:
        (..., F), in autocast's type where autocast is on, else in the type of the inputs.
    """
    return _active["linear"].kernel.call(x, weight, bias)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """GELU(x @ weight^T + bias) in the tanh form (Hendrycks & Gimpel 2016, section 2); shapes as in `linear`."""
    return _active["linear_gelu"].kernel.call(x, weight, bias)


def adaln(x: Tensor, shift: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    """LayerNorm(x) * (1 + scale) + shift, the norm over D and without weights of its own (Peebles & Xie, section 3.2).

    Args:
        x: (N, T, D).
        shift: (N, D).
        scale: (N, D).
        eps: added to the variance.

    Returns:
        (N, T, D).
    """
    return _active["adaln"].kernel.call(x, shift, scale, eps)


def gate_residual(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """x + gate * y: the gated residual connection of adaLN-Zero (Peebles & Xie, section 3.2).

    Args:
        x: (N, T, D), the residual stream.
        gate: (N, D).
        y: (N, T, D), the branch.

    Returns:
        (N, T, D), in the wider type of the inputs: an fp32 stream stays fp32.
    """
    return _active["gate_residual"].kernel.call(x, gate, y)


def attention(qkv: Tensor, num_heads: int) -> Tensor:
    """softmax(q k^T / sqrt(K)) v for each head, over all tokens.

    Args:
        qkv: (N, T, 3D); the last dimension holds q, then k, then v, each of them head by head.
        num_heads: H; divides D.

    Returns:
        (N, T, D), head by head.
    """
    return _active["attention"].kernel.call(qkv, num_heads)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), any shape."""
    return _active["silu"].kernel.call(x)


class use:  # reads as a verb at the place of use
    """Makes `backend` serve the operators: from now on, or in the body of a `with`.

    Raises:
        UserError: the table has no such back end; the active choice stays as it was.
    """

    def __init__(self, backend: str) -> None:
        chosen = choose(backend)
        self._previous = dict(_active)
        _active.update(chosen)
        lacking = [op for op, choice in chosen.items() if choice.kernel.backend != backend]
        note = f"; {FALLBACK} for {', '.join(lacking)}" if lacking else ""
        logger(__name__).info("operators served by back end %s%s", backend, note)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.update(self._previous)


def describe() -> list[dict[str, str]]:
    """Which kernel serves each operator now: a row with `op`, `backend`, `kernel` and `why` for each."""
    return [
        {"op": op, "backend": choice.kernel.backend, "kernel": choice.kernel.call.__name__, "why": choice.why}
        for op, choice in _active.items()
    ]
