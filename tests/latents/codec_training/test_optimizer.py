"""Tests of the codec's optimizer against PyTorch's Muon and AdamW."""

import copy

import pytest
import torch
from torch import nn

from dithc.latents.codec_training.optimizer import BETAS, CodecOptimizer

LR = 0.01


@pytest.mark.parametrize("side", [1, 3])
def test_updates_equal_those_of_torch(side):
    torch.manual_seed(0)
    net = nn.Conv2d(12, 20, side).to(memory_format=torch.channels_last)
    reference = copy.deepcopy(net)
    kernel = nn.Parameter(reference.weight.detach().flatten(1).clone())
    muon = torch.optim.Muon([kernel], lr=LR, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([reference.bias], lr=LR, betas=BETAS, weight_decay=0.0)
    optimizer = CodecOptimizer(net)
    for _ in range(3):
        for parameter, expected in ((net.weight, kernel), (net.bias, reference.bias)):
            gradient = torch.randn_like(parameter)
            parameter.grad, expected.grad = gradient, gradient.reshape(expected.shape).clone()
        optimizer.step(LR)
        muon.step()
        adamw.step()
    assert net.weight.grad is None
    torch.testing.assert_close(net.bias, reference.bias)
    error = net.weight.detach().flatten(1) - kernel.detach()  # PyTorch orthogonalizes in bf16
    assert error.norm() < 0.02 * (kernel - reference.weight.flatten(1)).norm()
