"""Tests of operation counts against the paper's figures and torch's counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dithc.model import PRESETS, DiT, flops_per_image


def test_xl2_training_is_687_gflop_linear_and_711_7_with_attention() -> None:
    flops = flops_per_image(PRESETS["DiT-XL/2"])
    assert flops.training_linear == pytest.approx(687e9, rel=2e-3)
    assert flops.training_total == pytest.approx(711.7e9, rel=2e-4)


MODERN = {"norm": "rms", "mlp": "swiglu", "position_embedding": "rope", "qk_norm": True, "input_size": (8, 16)}


@pytest.mark.parametrize("overrides", [{}, {"learn_sigma": False, "in_channels": 13, "input_size": (8, 16)}, MODERN])
def test_forward_flops_equal_the_torch_flop_counter(overrides: dict[str, object], use_backend) -> None:
    use_backend("reference")
    model = DiT.from_preset("DiT-S/2", depth=2, **overrides)
    x = torch.randn(1, model.config.in_channels, *model.config.size)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(x, torch.zeros(1), torch.zeros(1, dtype=torch.long))
    assert counter.get_total_flops() == flops_per_image(model.config).forward_total
