"""Tiers for tests of managed memory; after each test, with the models gone, all tiers must be empty."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import Tensor, nn

from dithc.engine.automem import AutoMem
from dithc.engine.memory import Tiers, output_pool
from tests.engine.automem.managed_models import loss_of, moving_plan, two_tiers, used_bytes


@pytest.fixture
def make_tiers(tmp_path: Path) -> Iterator[Callable[..., Tiers]]:
    """Return `make_tiers(budget in MiB, file=False)`; at the end every tier must be empty and within its budget."""
    created: list[Tiers] = []
    pool = output_pool()

    def make(budget_mib: float = 24, *, file: bool = False) -> Tiers:
        created.append(two_tiers(budget_mib, folder=tmp_path if file else None))
        return created[-1]

    yield make
    gc.collect()
    assert output_pool() is pool, "operators still allocate from a tier"
    for tiers in created:
        assert used_bytes(tiers) == [0] * len(tiers), "tiers must be empty"
        assert tiers.fast.counters().peak_backed_bytes <= tiers.fast.spec.budget_bytes
        tiers.close()


@pytest.fixture
def moving_model(make_tiers: Callable[..., Tiers]) -> Callable[..., nn.Module]:
    """Return `moving_model(make)`: a managed model with a plan that moves all movable tensors from the second call on."""

    def build(
        make: Callable[[], nn.Module],
        *,
        file: bool = False,
        recompute: str = "none",
        loss: Callable[[nn.Module, int], Tensor] = loss_of,
        **settings: object,
    ) -> nn.Module:
        plan = moving_plan(make, loss=loss, recompute=recompute, file=file)
        tiers = make_tiers(50, file=file)
        return AutoMem(make(), recompute, tiers=tiers, plan=plan, **settings)  # type: ignore[arg-type]

    return build


@pytest.fixture(params=["memory", "file"])
def tiers(request: pytest.FixtureRequest, make_tiers: Callable[..., Tiers]) -> Tiers:
    """Return a fast tier of 24 MiB above ordinary memory, or above a file."""
    return make_tiers(24, file=request.param == "file")
