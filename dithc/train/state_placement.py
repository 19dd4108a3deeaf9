"""Allocation of tensors that outlive a step, and the names of moments."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")

# Given a tensor's name and a template (perhaps without memory), returns an uninitialized tensor of its shape and type.
Allocator: TypeAlias = Callable[[str, Tensor], Tensor]


def new_empty(_: str, template: Tensor) -> Tensor:
    """Allocate in torch's own memory."""
    return torch.empty(template.shape, dtype=template.dtype)
