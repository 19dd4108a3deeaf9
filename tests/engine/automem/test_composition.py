"""Tests of managed memory with other wrappers: recomputation, bf16, reducers, other backends and libraries."""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dithc.engine import hcops
from dithc.engine.automem import AutoMem, get_manager
from dithc.engine.memory import Tiers
from tests.engine.automem.managed_models import (
    assert_moved,
    loss_of,
    manager_of,
    mlps,
    moving_plan,
    small,
    train,
    train_unmanaged,
)

pytestmark = pytest.mark.sampled("managed tensors")
Build = Callable[..., nn.Module]


def assert_same(
    model: nn.Module,
    make: Callable[[], nn.Module],
    *,
    offloaded: bool = True,
    loss: Callable[[nn.Module, int], Tensor] = loss_of,
    **settings: object,
) -> None:
    """Assert that a recorded step and a planned step equal an unmanaged run, and that tensors moved."""
    expected = train_unmanaged(make, 2) if loss is loss_of and not settings else train(make(), steps=2, loss=loss)
    train(model, steps=2, loss=loss, **settings).assert_same(expected)  # type: ignore[arg-type]
    assert_moved(model, offloaded=offloaded)


def test_recomputed_blocks_match_unmanaged_run_and_save_only_inputs(moving_model: Build) -> None:
    model = moving_model(small, recompute="block")
    assert_same(model, small)
    trace = manager_of(model).trace
    blocks = [unit for unit in trace.units if unit.name.startswith("blocks")]
    assert all(len(unit.saved) <= 2 for unit in blocks)  # a block keeps only its input and the condition


def test_plan_recomputation_matches_unmanaged_run(make_tiers: Callable[..., Tiers]) -> None:
    plan = moving_plan(small)
    units = {
        name: replace(decision, recompute=name.startswith("blocks"), saved=("keep",) * len(decision.saved))
        for name, decision in plan.units.items()
    }
    model = AutoMem(small(), tiers=make_tiers(50), plan=replace(plan, units=units))
    assert_same(model, small, offloaded=False)
    assert manager_of(model).counters().recomputed_units == 2  # two blocks, in the step after the warm-up


class Checkpointed(nn.Module):
    """A model with built-in recomputation, in both modes of torch."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = mlps(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner.first(x)
        for block in self.inner.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return self.inner.last(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_inside_model_matches_unmanaged_run(moving_model: Build, reentrant: bool) -> None:
    make = partial(Checkpointed, reentrant=reentrant)
    assert_same(moving_model(make), make, offloaded=False)


def checkpointed_loss(model: nn.Module, seed: int) -> Tensor:
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(seed))
    out: Tensor = checkpoint(model, x, use_reentrant=False)
    return out.pow(2).mean()


def test_checkpoint_around_model_matches_unmanaged_run(moving_model: Build) -> None:
    assert_same(moving_model(mlps, loss=checkpointed_loss), mlps, loss=checkpointed_loss, offloaded=False)


def bf16_loss(model: nn.Module, seed: int) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loss_of(model, seed).float()


def test_bf16_autocast_matches_unmanaged_run(moving_model: Build) -> None:
    assert_same(moving_model(small, loss=bf16_loss), small, loss=bf16_loss)


def test_flat_gradients_match_unmanaged_run_and_stay_in_buffer(moving_model: Build) -> None:
    def flat(model: nn.Module) -> nn.Module:
        weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
        hcops.optimizer.flat_gradients(weights)
        return model

    expected = train(flat(small()), steps=2, micro_batches=2)
    model = flat(moving_model(small))
    train(model, steps=2, micro_batches=2).assert_same(expected)
    assert_moved(model)
    weight = model.blocks[0].mlp.fc1.weight
    assert weight.grad.data_ptr() == weight.flat_grad.data_ptr()


def test_external_hooks_receive_complete_gradients(moving_model: Build) -> None:
    def sums(model: nn.Module) -> list[float]:
        found: list[float] = []

        def record(parameter: Tensor) -> None:
            found.append(parameter.grad.double().sum().item())

        hooks = [p.register_post_accumulate_grad_hook(record) for p in model.parameters() if p.requires_grad]
        train(model, steps=2)
        for hook in hooks:
            hook.remove()
        return found

    model = moving_model(small)
    assert sums(model) == sums(small())
    assert_moved(model)


@pytest.mark.slow
def test_distributed_data_parallel_matches_unmanaged_run(moving_model: Build) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        inner = moving_model(small)
        model = DistributedDataParallel(inner)
        assert get_manager(model) is get_manager(inner)
        loss = partial(loss_of, inner=inner)
        train(model, steps=2, loss=loss).assert_same(train_unmanaged(small, 2))
        assert_moved(inner)
    finally:
        del model, inner, loss
        gc.collect()
        dist.destroy_process_group()


def test_weights_in_external_buffer_match_unmanaged_run(moving_model: Build) -> None:
    """Simulate shared weights: one flat buffer, with values that arrive on request."""
    sizes: list[int] = []
    model = moving_model(small)
    manager = manager_of(model)
    manager.call_before_load(lambda parameters: sizes.append(len(parameters)))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    flat = torch.zeros(sum(parameter.numel() for parameter in trained))
    start = 0
    for parameter in trained:
        view = flat[start : start + parameter.numel()].view(parameter.shape)
        view.copy_(parameter.detach())
        parameter.data = view
        start += parameter.numel()
    train(model, steps=2, before_step=manager.begin_step).assert_same(train_unmanaged(small, 2))
    assert_moved(model)
    assert sum(sizes) > 0
    stop = flat.data_ptr() + flat.nbytes
    assert all(flat.data_ptr() <= parameter.data_ptr() < stop for parameter in trained)


def frozen_and_shared() -> nn.Module:
    model = mlps()
    model.blocks[1].requires_grad_(False)
    model.blocks[3][1] = model.blocks[0][1]  # type: ignore[index]
    model.blocks[2][3].weight = model.blocks[0][3].weight  # type: ignore[index]
    return model


@pytest.mark.parametrize("file", [False, True])
def test_frozen_and_shared_parameters_match_unmanaged_run(moving_model: Build, file: bool) -> None:
    assert_same(moving_model(frozen_and_shared, file=file), frozen_and_shared, offloaded=file)


class RepeatedBlocks(nn.Module):
    """Model that calls each of its blocks twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlps(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner.first(x)
        for block in (*self.inner.blocks, *self.inner.blocks):
            x = x + block(x)
        return self.inner.last(x)


def test_modules_called_twice_match_unmanaged_run_as_separate_units(moving_model: Build) -> None:
    model = moving_model(RepeatedBlocks, file=True)
    assert_same(model, RepeatedBlocks)
    trace = manager_of(model).trace
    assert "inner.blocks.0.1#2" in [unit.name for unit in trace.units]


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_reference_and_numba_backends_match_unmanaged_run(
    make_tiers: Callable[..., Tiers], use_backend: Callable[[str], None], backend: str
) -> None:
    use_backend(backend)
    model = AutoMem(small(), tiers=make_tiers(50, file=True), plan=moving_plan(small, file=True))
    train(model, steps=2).assert_same(train(small(), steps=2))
    assert_moved(model)


def unet() -> nn.Module:
    from diffusers import UNet2DModel  # slow import

    torch.manual_seed(5)
    return UNet2DModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        block_out_channels=(32, 64, 96),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
    )


def loss_of_unet(model: nn.Module, seed: int) -> Tensor:
    x = torch.randn(8, 4, 32, 32, generator=torch.Generator().manual_seed(seed))
    return model(x, torch.arange(8) * 100).sample.pow(2).mean()


@pytest.mark.slow
def test_diffusers_unet_matches_unmanaged_run(moving_model: Build) -> None:
    assert_same(moving_model(unet, loss=loss_of_unet, file=True), unet, loss=loss_of_unet)
