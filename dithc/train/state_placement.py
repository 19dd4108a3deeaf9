"""Allocation of tensors that outlive a step, and the names of moments."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")

# Given a tensor's name and a template (perhaps without memory), returns an uninitialized tensor of its shape and type.
Home: TypeAlias = Callable[[str, Tensor], Tensor]


def anywhere(_: str, like: Tensor) -> Tensor:
    """Allocate in torch's own memory."""
    return torch.empty(like.shape, dtype=like.dtype)
