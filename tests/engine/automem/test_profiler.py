"""Tests of the warm-up trace: saved tensors, bytes and times of a step of a known model."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dithc.engine import hcops
from dithc.engine.automem import AutoMem
from dithc.engine.automem.trace import Trace
from dithc.engine.memory import Tiers
from tests.engine.automem.managed_models import manager_of

ROWS, WIDTH = 1024, 512  # 2 MiB of fp32 each


class Layer(nn.Module):
    """Linear layer of HCOps: keeps its input and allocates its output."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return hcops.linear(x, self.weight)


class SkipConnection(nn.Module):
    """Four layers; the last layer also reads the output of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        early = self.layers[0](x)
        middle = self.layers[2](self.layers[1](early))
        return self.layers[3](early) + middle


def trace_of(model: nn.Module, tiers: Tiers) -> Trace:
    AutoMem(model, tiers=tiers)
    for _ in range(3):  # the third call creates the plan and its trace
        model(torch.ones(ROWS, WIDTH)).sum().backward()
        model.zero_grad()
    return manager_of(model).trace


def test_trace_contains_units_tensors_and_bytes_of_the_model(make_tiers: Callable[..., Tiers]) -> None:
    trace = trace_of(SkipConnection(), make_tiers(64))
    assert [unit.name for unit in trace.units] == [f"layers.{index}" for index in range(4)]
    assert [[weight.bytes for weight in unit.weights] for unit in trace.units] == [[WIDTH * WIDTH * 4]] * 4
    # The first layer keeps the model's input, which torch owns; `early` is listed at the unit that saved it first.
    saved = [
        [(one.bytes, one.is_input, one.first_reader, one.last_reader) for one in unit.saved] for unit in trace.units
    ]
    tensor = ROWS * WIDTH * 4
    assert saved == [[], [(tensor, True, 0, 2)], [(tensor, True, 1, 1)], []]
    weight = WIDTH * WIDTH * 4
    for unit in trace.units:
        assert tensor <= unit.forward_bytes <= 2 * tensor, "its output, and memory during the product"
        assert unit.backward_bytes >= weight
        assert min(unit.forward_seconds, unit.backward_seconds) > 0
        assert all(one.gradient_bytes == weight for one in unit.weights)
    assert trace.outside_bytes == 0
    assert not trace.gradients_persist


def test_spills_in_the_warm_up_do_not_change_the_trace(make_tiers: Callable[..., Tiers]) -> None:
    wide, narrow = (trace_of(SkipConnection(), tiers) for tiers in (make_tiers(64), make_tiers(64)))
    tight = trace_of(SkipConnection(), make_tiers(4))
    for one in (narrow, tight):
        assert [unit.saved for unit in one.units] == [unit.saved for unit in wide.units]
        assert [unit.forward_bytes for unit in one.units] == [unit.forward_bytes for unit in wide.units]
