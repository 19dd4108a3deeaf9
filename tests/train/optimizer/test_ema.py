"""The average follows weights with and without a gradient, and moves to other memory."""

import torch
from torch import nn

from dithc.config import training
from dithc.train.optimizer import Ema, Optimizer


def test_average_follows_weights_without_a_gradient_and_moves():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    ema = Ema(model, training.EmaConfig(decay=0.5, warmup=False))
    assert ema.state.keys() == model.state_dict().keys()
    moved: list[str] = []
    ema.relocate(lambda name, value: moved.append(name) or value.clone())
    assert moved == [f"ema.{name}" for name in ema.state]
    start = model[0].weight.detach().clone()
    model[1](torch.ones(1, 4)).sum().backward()
    optimizer = Optimizer.of_run(model, training.RunConfig(dataset="none"))
    for step in (1, 2):
        with torch.no_grad():
            model[0].weight.add_(1.0)
        optimizer.update(step, ema=ema)
    torch.testing.assert_close(
        ema.state["0.weight"], start + 1.25
    )  # start + (0 + 1) / 2, then half of the way to start + 2
