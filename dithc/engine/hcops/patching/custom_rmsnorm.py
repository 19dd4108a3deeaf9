"""Modules that compute an RMSNorm from several operators, as in transformers. They are detected by their results.

Each module is served as one call. Only its `forward` is replaced while it is patched.
"""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from dithc.engine.hcops.dispatch import PLAIN

EPS_NAMES = ("eps", "variance_epsilon", "epsilon")
TRIAL_ROWS = 3
TOLERANCE = 1e-5  # for numbers near 1, in fp32


class PatchedRmsNorm:
    """Forward pass of a patched module as one call that modes of torch intercept, with the number of `eps_of`."""

    def __init__(self, module: nn.Module, eps: float) -> None:
        self.eps, self._module = eps, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_unary = len(args) == 1 and not kwargs and type(args[0]) in PLAIN
        if torch.compiler.is_compiling() or not is_unary or not has_torch_function(args):  # no mode is active
            return type(self._module).forward(self._module, *args, **kwargs)
        weight = self._module._parameters["weight"]
        return handle_torch_function(rms_norm_by_hand, args, args[0], weight, self)  # type: ignore[arg-type]

    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        """Run the module's own computation with any weight of shape (D,)."""
        module = self._module
        if weight is not module.weight:
            module = copy.copy(module)
            module.__dict__["_parameters"] = {"weight": weight}
        out: Tensor = type(module).forward(module, x)
        return out


def rms_norm_by_hand(x: Tensor, weight: Tensor, norm: PatchedRmsNorm) -> Tensor:
    """Normalize x (..., D) over D and multiply by weight. Modes of torch intercept this function."""
    return norm.compute(x, weight)


def eps_of(module: nn.Module) -> float | None:
    """Return the eps of a module that is named RMSNorm and computes it on a few rows of random numbers, or None."""
    is_named = "rmsnorm" in type(module).__name__.lower() and not isinstance(module, nn.RMSNorm)
    if not is_named or "forward" in vars(module) or list(module._parameters) != ["weight"]:
        return None
    weight = module._parameters["weight"]
    if weight is None or weight.dim() != 1 or not weight.is_cpu or module._buffers or module._modules:
        return None
    eps_values = [value for name in EPS_NAMES if isinstance(value := getattr(module, name, None), float)]
    return eps_values[0] if len(eps_values) == 1 and _is_rms_norm(module, eps_values[0], len(weight)) else None


def _is_rms_norm(module: nn.Module, eps: float, width: int) -> bool:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    weight, norm = draw(width), PatchedRmsNorm(module, eps)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for scale in (1.0, eps**0.5):  # eps is negligible, then as large as the squares
            x = scale * draw(TRIAL_ROWS, width)
            expected = torch.rms_norm(x.double(), (width,), weight.double(), eps)
            try:
                out = norm.compute(x, weight)
            except Exception:  # not an RMSNorm; leave the module unchanged after any error
                return False
            if not isinstance(out, Tensor) or out.shape != x.shape or out.dtype is not x.dtype:
                return False
            if not torch.allclose(out.double(), expected, rtol=TOLERANCE, atol=TOLERANCE):
                return False
    return True
