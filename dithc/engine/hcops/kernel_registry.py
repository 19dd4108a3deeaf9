"""Back ends, the raw kernels of each, and the choice of a back end for every operator.

The kernels of `reference` are plain torch with its gradients. The others are raw: functions of tensors without
autograd, from which `autograd.custom_ops` builds operators of torch.
"""

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from torch import Tensor

from dithc.core.logging import user_error
from dithc.engine import native
from dithc.engine.hcops import reference
from dithc.engine.hcops.spec import SPECS, OpSpec

FALLBACK = "reference"
FAST = ("c", "numba")
"""Back ends in order of preference."""


class KernelChoice(NamedTuple):
    spec: OpSpec
    backend: str
    reason: str


def choose(backend: str, *, reason: str | None = None) -> dict[str, KernelChoice]:
    """Return the choice of `backend` for every operator; raise UserError for an unknown back end."""
    if backend not in (FALLBACK, *FAST):
        names, fix = " or ".join((FALLBACK, *FAST)), "name one of these in hcops.use(...) or in the configuration"
        raise user_error("unknown back end of the operators", got=repr(backend), expected=names, fix=fix)
    return {spec.name: KernelChoice(spec, backend, reason or f"requested back end {backend}") for spec in SPECS}


def obstacle(backend: str) -> str | None:
    if backend == "c" and native.library() is None:
        return native.load_library().reason
    if backend == "numba" and find_spec("numba") is None:
        return "Numba is not installed"
    return None


def default() -> tuple[str, str]:
    reasons: list[str] = []
    for backend in FAST:
        cause = obstacle(backend)
        if cause is None:
            return backend, "; ".join(["the fastest back end that works here", *reasons])
        reasons.append(f"not {backend}: {cause}")
    return FALLBACK, "; ".join(reasons)


@cache
def raw_of(backend: str, name: str) -> Callable[..., Any]:
    """Return the raw kernel `name`, such as linear_backward, of a back end; raise UserError if it has none."""
    if name in COMPOSED and backend != FALLBACK:
        return partial(COMPOSED[name], backend)
    for module in _modules(backend):
        if callable(kernel := getattr(module, name, None)):
            return kernel  # type: ignore[no-any-return]
    fix = "choose a back end that has it with hcops.use(...)"
    raise user_error(f"raw kernel {name}", got=f"back end {backend}", expected="a back end that has it", fix=fix)


def _mlp_forward(backend: str, x: Tensor, *inputs: Any, keep: bool = True) -> tuple[Tensor | None, ...]:
    """Call `linear_gelu_forward`, then `linear_gate_residual_forward`; return (out, hidden, before, y)."""
    weight1, bias1, weight2, bias2, gate, residual, dtype = inputs
    hidden, before = raw_of(backend, "linear_gelu_forward")(x, weight1, bias1, dtype, keep=keep)
    gated = raw_of(backend, "linear_gate_residual_forward")
    out, y = gated(hidden, weight2, bias2, gate, residual, dtype, keep=keep)
    return out, hidden, before, y  # (N, T, F), (N, T, E), (N, T, E), (N, T, F)


def _adarms_forward(backend: str, *inputs: Any) -> tuple[Tensor, Tensor]:
    """Call `adaln_forward` with RMSNorm; return out and rstd."""
    out, _, rstd = raw_of(backend, "adaln_forward")(*inputs, op="adarms")
    return out, rstd  # (N, T, D), (N, T)


def _adarms_backward(backend: str, dy: Tensor, x: Tensor, scale: Tensor, rstd: Tensor, *dstream: Tensor | None) -> Any:
    return raw_of(backend, "adaln_backward")(dy, x, scale, None, rstd, *dstream)


COMPOSED: dict[str, Callable[..., Any]] = {
    "mlp_forward": _mlp_forward,
    "adarms_forward": _adarms_forward,
    "adarms_backward": _adarms_backward,
}
"""Raw kernels that call other raw kernels of the same back end."""


def _modules(backend: str) -> tuple[object, ...]:
    """Return the modules of a back end. Imports are delayed because Numba takes a second."""
    if backend == "c":
        from dithc.engine.hcops import c

        return c.matrix, c.vector
    if backend == "numba":
        from dithc.engine.hcops import numba

        return numba.operators, numba.vector, numba.heads
    return (reference,)
