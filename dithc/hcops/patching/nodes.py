"""Nodes of autograd for functions that a DiT does not have: LayerNorm and RMSNorm with weights of their own.

Legend: R rows, D width.
"""

from typing import Any

import torch
from torch import Tensor

from dithc.hcops.active import raw, say_default
from dithc.hcops.gradients import kernel
from dithc.hcops.route import dense


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, rms: bool) -> Tensor:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019) over the last dimension: adaLN of one condition for all rows.

    Args:
        x: (..., D).
        weight: (D); None for ones.
        bias: (D); None for zeros.
        eps: added to the variance, or to the mean square.
        rms: RMSNorm.

    Returns:
        (..., D) in x's type, as torch gives it.
    """
    out: Tensor = dithc_norm.apply(x, weight, bias, eps, rms)  # type: ignore[no-untyped-call]
    return out


class dithc_norm(torch.autograd.Function):  # the name is what a profiler shows
    """The node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool) -> Tensor:
        say_default()
        ctx.direct, ctx.rms, width = True, rms, x.shape[-1]
        rows = dense(x).view(1, -1, width)  # (1, R, D)
        scale = torch.zeros(1, width) if weight is None else weight.detach().float().view(1, width) - 1.0
        shift = torch.zeros(1, width) if bias is None else bias.detach().float().view(1, width)
        out, *statistics = raw("adarms_forward" if rms else "adaln_forward")(rows, shift, scale, eps, x.dtype)
        ctx.save_for_backward(rows, scale, *statistics)
        first: Tensor = out
        return first.view(x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, *saved = ctx.saved_tensors
        name = "adarms_backward" if ctx.rms else "adaln_backward"
        dx, dshift, dscale = kernel(ctx, name)(dense(dy).view(rows.shape), rows, *saved)
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        return (
            dx.view(dy.shape) if of_x else None,
            dscale.view(-1) if of_weight else None,
            dshift.view(-1) if of_bias else None,
            None,
            None,
        )
