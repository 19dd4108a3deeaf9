"""Where tensors that outlive a step are to live, and the names under which moments of weights are kept."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")

# Given a tensor's name and another (perhaps without memory), an uninitialised one of the same shape and type.
Home: TypeAlias = Callable[[str, Tensor], Tensor]


def anywhere(_: str, like: Tensor) -> Tensor:
    """A home in the memory that torch gives."""
    return torch.empty(like.shape, dtype=like.dtype)
