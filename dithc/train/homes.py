"""Allocation of tensors that outlive a step, and the names of moments."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")

# Given a tensor's name and another (perhaps without memory), an uninitialised one of the same shape and type.
Home: TypeAlias = Callable[[str, Tensor], Tensor]


def anywhere(_: str, like: Tensor) -> Tensor:
    """Allocate in torch's own memory."""
    return torch.empty(like.shape, dtype=like.dtype)
