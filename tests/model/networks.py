"""Small networks with random weights, and inputs for them."""

from typing import Any

import torch
from torch import Tensor

from dithc.model import DiT

SMALL = {"hidden_size": 32, "num_heads": 2, "depth": 2, "input_size": 8, "num_classes": 3}


def small(seed: int = 0, **overrides: Any) -> DiT:
    torch.manual_seed(seed)
    return DiT.from_preset("DiT-S/2", **{**SMALL, **overrides})


def nonzero(seed: int = 0, *, scale: float = 0.05, **overrides: Any) -> DiT:
    """Return a small model without the initial zeros."""
    model = small(seed, **overrides)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += scale * torch.randn_like(parameter)
    return model


def inputs(model: DiT, num: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(5)
    config = model.config
    x = torch.randn(num, config.in_channels, *config.size)
    return x, torch.randint(0, 1000, (num,)), torch.randint(0, config.num_classes, (num,))
