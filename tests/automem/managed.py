"""What the tests of managed memory share: models that are small but not below the floor, steps, and a comparison of two runs."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from dithc.automem import AutoMem, Manager, Plan, manager
from dithc.memory import Tiers, TierSpec
from dithc.model import DiT

MIB = 1 << 20


class Mlps(nn.Module):
    """Residual blocks of plain torch modules; `hooked` counts the calls of its blocks."""

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
    """The same weights at every call."""
    torch.manual_seed(3)
    return Mlps(depth)


def dit(depth: int = 3) -> DiT:
    """A small DiT, away from its zero head, so that every weight has a gradient; the same weights at every call.

    Its matrices and, with 4 images, its activations are just large enough for the pool, which leaves less than 1 MiB to torch.
    """
    torch.manual_seed(1)
    model = DiT.from_preset("DiT-S/2", hidden_size=256, num_heads=4, depth=depth, input_size=32, num_classes=10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def loss_of(model: nn.Module, seed: int, *, images: int = 4, inner: nn.Module | None = None) -> Tensor:
    """A loss of a batch that follows from the seed."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(inner or model, DiT):
        x = torch.randn(images, 4, 32, 32, generator=generator)
        t, y = torch.arange(images) * 90, torch.arange(images) % 10
        out: Tensor = model(x, t, y)
    else:
        out = model(torch.randn(128 * images, 64, generator=generator))
    return (out**2).mean()


@dataclass
class Run:
    """What came out of some steps: compared bit by bit."""

    losses: list[float]
    gradients: list[Tensor | None]
    weights: list[Tensor]

    def assert_same(self, other: "Run") -> None:
        assert self.losses == other.losses
        for one, two in zip(self.weights, other.weights, strict=True):
            assert torch.equal(one, two)
        for first, second in zip(self.gradients, other.gradients, strict=True):
            assert (first is None) == (second is None)
            assert first is None or second is None or torch.equal(first, second)


def train(
    model: nn.Module,
    *,
    steps: int = 3,
    loss: Callable[[nn.Module, int], Tensor] = loss_of,
    micro_batches: int = 1,
    before_step: Callable[[], None] | None = None,
) -> Run:
    """AdamW steps; the gradients are those of the last one."""
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
        gradients=[None if p.grad is None else p.grad.clone() for p in model.parameters()],
        weights=[parameter.detach().clone() for parameter in model.parameters()],
    )


@cache
def unmanaged(make: Callable[[], nn.Module], steps: int = 3, micro_batches: int = 1) -> Run:
    """What `train` gives for a model that nobody manages."""
    return train(make(), steps=steps, micro_batches=micro_batches)


def two_tiers(budget_mib: float, *, folder: Path | None = None, file_mib: int = 256) -> Tiers:
    """A fast tier with a budget above ordinary memory, or above a file in `folder`."""
    fast = TierSpec(name="fast", kind="ddr", budget_bytes=int(budget_mib * MIB))
    if folder is None:
        return Tiers([fast, TierSpec(name="slow", kind="ddr", budget_bytes=None)])
    return Tiers([fast, TierSpec(name="file", kind="file", budget_bytes=file_mib * MIB, folder=folder)])


def managed(model: nn.Module) -> Manager:
    """The manager of a model that has one."""
    found = manager(model)
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
    """A plan by which everything that can move does, whatever the planner thinks of it."""
    with TemporaryDirectory() as folder:
        tiers = two_tiers(400, folder=Path(folder) if file else None)
        model = AutoMem(make(), recompute, tiers=tiers)  # type: ignore[arg-type]
        for seed in range(3):  # two are the warm-up, the third has the plan
            loss(model, seed).backward()
            model.zero_grad()
        plan = managed(model).plan
        assert plan is not None
        del model
        gc.collect()
        tiers.close()
    units = {
        name: replace(
            unit,
            weights="copied",
            gradients="slow",
            saved=("offload",) * len(unit.saved),
            forward_ahead=1,
            backward_ahead=1,
        )
        for name, unit in plan.units.items()
    }
    return replace(plan, units=units)


def assert_moved(model: nn.Module, *, offloaded: bool = True) -> None:
    """Copies of weights were made and used; saved tensors left fast memory, unless the model saves none there."""
    counters = managed(model).counters()
    assert min(counters.loaded_bytes, counters.hits) > 0, "no weight was copied"
    assert not offloaded or counters.offloaded_bytes > 0, "no saved tensor left"


def used_bytes(tiers: Sequence[object]) -> list[int]:
    """What each tier has in use."""
    return [tier.counters().used_bytes for tier in tiers]  # type: ignore[attr-defined]


def weights_in(model: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters large enough to be moved."""
    return (parameter for parameter in model.parameters() if parameter.nbytes >= 64 << 10)
