"""Operators of an optimizer step: norm, update, orthogonal factor of a matrix, and one buffer for gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dithc.hcops import reference
from dithc.hcops.active import backend_of, raw, say_once
from dithc.hcops.autograd import flat_gradients, forget_gradients, give_place, storage_users
from dithc.hcops.checks import AdamwTensors
from dithc.hcops.newton_schulz import orthogonalise
from dithc.hcops.table import FALLBACK
from dithc.log import problem
from dithc.native import AdamwSettings

__all__ = [
    "adamw",
    "flat_gradients",
    "forget_gradients",
    "give_place",
    "orthogonalise",
    "storage_users",
    "sum_of_squares",
]


def sum_of_squares(tensors: Sequence[Tensor]) -> float:
    """Return the sum of the squares of all elements in float64; fast back ends add in a fixed order."""
    if _reference_serves("sum_of_squares", tensors):
        return reference.sum_of_squares_forward(tensors)
    return float(raw("sum_of_squares_forward")(tensors))


@torch.no_grad()
def adamw(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    *,
    averages: Sequence[Tensor] | None = None,
    shadows: Sequence[Tensor] | None = None,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: float = 1.0,
    ema_decay: float = 0.0,
) -> None:
    """Apply an AdamW update to contiguous weights in place (Loshchilov & Hutter 2019, algorithm 2), then averages and
    copies.

    All lists have the shapes of the weights; gradients are not changed. Averages become ema_decay * average + (1 -
    ema_decay) * weight with the new weight, and `shadows` its bf16 copies. `weight_decay` is decoupled. `step` is 1 for
    the first update, and `gradient_scale` multiplies each gradient.

    Raises:
        UserError: The step is below 1, or the lists do not match.
    """
    if step < 1:
        raise problem("operator adamw, argument step", got=step, expected="1 or more", fix="count updates from 1")
    everything = [*weights, *gradients, *first, *second, *(averages or ())]
    by_torch = _reference_serves("adamw", everything)
    kernel = reference.adamw_forward if by_torch else raw("adamw_forward")
    settings = AdamwSettings(lr, *betas, eps, weight_decay, gradient_scale, step, ema_decay)
    kernel(AdamwTensors(weights, gradients, first, second, averages, shadows), settings)
    if not by_torch:  # tell autograd that the memory of saved tensors has changed
        changed = [*weights, *first, *second, *(averages or ()), *(shadows or ())]
        torch.autograd.graph.increment_version(tensor for tensor in changed if not tensor.is_inference())


def _reference_serves(op: str, tensors: Sequence[Tensor]) -> bool:
    """Return whether plain torch serves the call because of strides, types or devices that fast kernels do not support."""
    backend = backend_of(op)
    if backend == FALLBACK:
        return True
    plain = all(tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous() for tensor in tensors)
    if not plain:
        say_once(op, "operator %s: tensors that are not contiguous fp32 on the CPU; the reference serves", op)
    return not plain
