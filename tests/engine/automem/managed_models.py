"""Helpers for tests of managed memory: small models above the size minimum, steps, and comparison of two runs."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from dithc.engine.automem import AutoMem, Manager, Plan, get_manager
from dithc.engine.memory import Tiers, TierSpec
from dithc.model import DiT

MIB = 1 << 20


class Mlps(nn.Module):
    """Residual blocks of plain torch modules."""

    def __init__(self, depth: int = 4, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.last = nn.Linear(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def mlps(depth: int = 4) -> Mlps:
    """Return a model with equal weights at every call."""
    torch.manual_seed(3)
    return Mlps(depth)


def dit(depth: int = 3) -> DiT:
    """Return a small DiT with a nonzero head, so that every weight has a gradient; equal weights at every call.

    Its matrices and, with 4 images, its activations are just above 1 MiB, the minimum size of the pool.
    """
    torch.manual_seed(1)
    model = DiT.from_preset("DiT-S/2", hidden_size=256, num_heads=4, depth=depth, input_size=32, num_classes=10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def small() -> DiT:
    return dit(2)


def loss_of(model: nn.Module, seed: int, *, images: int = 4, inner: nn.Module | None = None) -> Tensor:
    """Return the loss of a seeded batch."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(inner or model, DiT):
        x = torch.randn(images, 4, 32, 32, generator=generator)
        t, y = torch.arange(images) * 90, torch.arange(images) % 10
        out: Tensor = model(x, t, y)
    else:
        out = model(torch.randn(128 * images, 64, generator=generator))
    return (out**2).mean()


def assert_equal(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    for one, two in zip(found, expected, strict=True):
        assert (one is None) == (two is None)
        assert one is None or two is None or torch.equal(one, two)


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


@dataclass
class Run:
    """Results of some steps, compared bit by bit."""

    losses: list[float]
    gradients: list[Tensor | None]
    weights: list[Tensor]

    def assert_same(self, other: "Run") -> None:
        assert self.losses == other.losses
        assert_equal(self.weights, other.weights)
        assert_equal(self.gradients, other.gradients)


def train(
    model: nn.Module,
    *,
    steps: int = 3,
    loss: Callable[[nn.Module, int], Tensor] = loss_of,
    micro_batches: int = 1,
    before_step: Callable[[], None] | None = None,
) -> Run:
    """Run AdamW steps; the gradients come from the last step."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    losses = []
    for step in range(steps):
        if before_step is not None:
            before_step()
        optimizer.zero_grad()
        for part in range(micro_batches):
            value = loss(model, 10 * step + part)
            value.backward()
            losses.append(value.item())
            del value
        optimizer.step()
    return Run(
        losses=losses,
        gradients=gradients(model),
        weights=[parameter.detach().clone() for parameter in model.parameters()],
    )


@cache
def train_unmanaged(make: Callable[[], nn.Module], steps: int = 3, micro_batches: int = 1) -> Run:
    """Return the results of `train` for an unmanaged model."""
    return train(make(), steps=steps, micro_batches=micro_batches)


def two_tiers(budget_mib: float, *, folder: Path | None = None, file_mib: int = 256) -> Tiers:
    """Return a fast tier with a budget above ordinary memory, or above a file in `folder`."""
    fast = TierSpec(name="fast", kind="ddr", budget_bytes=int(budget_mib * MIB))
    if folder is None:
        return Tiers([fast, TierSpec(name="slow", kind="ddr", budget_bytes=None)])
    return Tiers([fast, TierSpec(name="file", kind="file", budget_bytes=file_mib * MIB, folder=folder)])


def manager_of(model: nn.Module) -> Manager:
    """Return the manager of a managed model."""
    found = get_manager(model)
    assert found is not None
    return found


@cache
def moving_plan(
    make: Callable[[], nn.Module],
    *,
    loss: Callable[[nn.Module, int], Tensor] = loss_of,
    recompute: str = "none",
    file: bool = False,
) -> Plan:
    """Return a plan that moves all movable tensors, regardless of the planner's choice."""
    with TemporaryDirectory() as folder:
        tiers = two_tiers(400, folder=Path(folder) if file else None)
        model = AutoMem(make(), recompute, tiers=tiers)  # type: ignore[arg-type]
        for seed in range(3):  # two warm-up steps, then a step under the plan
            loss(model, seed).backward()
            model.zero_grad()
        plan = manager_of(model).plan
        del model
        gc.collect()
        tiers.close()
    moves = {"weights": "copied", "gradients": "slow", "forward_ahead": 1, "backward_ahead": 1}
    units = {
        name: replace(unit, saved=("offload",) * len(unit.saved), **moves)  # type: ignore[arg-type]
        for name, unit in plan.units.items()
    }
    return replace(plan, units=units)


def assert_moved(model: nn.Module, *, offloaded: bool = True) -> None:
    """Assert that weights were copied and saved tensors offloaded, unless the model saves no tensors there."""
    counters = manager_of(model).counters()
    assert min(counters.loaded_bytes, counters.hits) > 0, "no weight was copied"
    assert not offloaded or counters.offloaded_bytes > 0, "no saved tensor left"


def used_bytes(tiers: Sequence[object]) -> list[int]:
    """Return the bytes in use per tier."""
    return [tier.counters().used_bytes for tier in tiers]  # type: ignore[attr-defined]
