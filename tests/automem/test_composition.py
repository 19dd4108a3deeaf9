"""Managed memory beside what else is put around a model: recomputation, bf16, reducers, other back ends, other libraries."""

import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from diffusers import DiTTransformer2DModel, UNet2DModel
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dithc import hcops
from dithc.automem import AutoMem, manager
from dithc.automem.manager import Manager
from dithc.memory import Tiers
from tests.automem.managed import Run, dit, loss_of, mlps, train, unmanaged


def managed(model: nn.Module) -> Manager:
    found = manager(model)
    assert found is not None
    return found


def of_plain(make: Callable[[], nn.Module], **settings: object) -> Run:
    return train(make(), **settings)  # type: ignore[arg-type]


def test_recomputation_of_blocks(tiers: Tiers) -> None:
    model = AutoMem(dit(), "block", tiers=tiers)
    train(model).assert_same(unmanaged(dit))
    trace = managed(model).trace
    assert trace is not None
    blocks = [unit for unit in trace.units if unit.name.startswith("blocks")]
    assert all(len(unit.saved) <= 2 for unit in blocks)  # its input and the condition, which is all that a block keeps


def test_recomputation_by_the_plan(make_tiers: Callable[..., Tiers]) -> None:
    from dataclasses import replace

    first = AutoMem(dit(), tiers=make_tiers(24))
    train(first, steps=2)
    plan = managed(first).plan
    managed(first).close()
    assert plan is not None
    units = {
        name: replace(decision, recompute=name.startswith("blocks"), saved=("keep",) * len(decision.saved))
        for name, decision in plan.units.items()
    }
    model = AutoMem(dit(), tiers=make_tiers(24), plan=replace(plan, units=units))
    train(model).assert_same(unmanaged(dit))
    assert managed(model).counters().recomputed_units == 2 * 3  # three blocks, in the two steps after the warm-up


class Checkpointed(nn.Module):
    """A model that recomputes by itself, in torch's two ways."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = mlps(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner.first(x)
        for block in self.inner.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return self.inner.last(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_inside_of_the_model(tiers: Tiers, reentrant: bool) -> None:
    make = partial(Checkpointed, reentrant=reentrant)
    train(AutoMem(make(), tiers=tiers)).assert_same(of_plain(make))


def test_checkpoint_around_the_model(tiers: Tiers) -> None:
    def loss(model: nn.Module, seed: int) -> Tensor:
        x = torch.randn(512, 64, generator=torch.Generator().manual_seed(seed))
        out: Tensor = checkpoint(model, x, use_reentrant=False)
        return out.pow(2).mean()

    train(AutoMem(mlps(), tiers=tiers), loss=loss).assert_same(of_plain(mlps, loss=loss))


def test_bf16(tiers: Tiers) -> None:
    def loss(model: nn.Module, seed: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, seed).float()

    model = AutoMem(dit(), tiers=tiers)
    train(model, loss=loss).assert_same(of_plain(dit, loss=loss))
    assert managed(model).counters().hits + managed(model).counters().misses > 0


def test_flat_gradients(tiers: Tiers) -> None:
    def flat(model: nn.Module) -> nn.Module:
        weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
        hcops.optimizer.flat_gradients(weights)
        return model

    expected = train(flat(dit()), micro_batches=2)
    model = flat(AutoMem(dit(), tiers=tiers))
    train(model, micro_batches=2).assert_same(expected)
    weight = model.blocks[0].mlp.fc1.weight
    assert weight.grad is not None
    assert weight.grad.data_ptr() == weight.flat_grad.data_ptr()


def test_hooks_of_others_see_complete_gradients(tiers: Tiers) -> None:
    def sums(model: nn.Module) -> list[float]:
        found: list[float] = []

        def landed(parameter: Tensor) -> None:
            assert parameter.grad is not None
            found.append(parameter.grad.double().sum().item())

        hooks = [p.register_post_accumulate_grad_hook(landed) for p in model.parameters() if p.requires_grad]
        train(model)
        for hook in hooks:
            hook.remove()
        return found

    assert sums(AutoMem(dit(), tiers=tiers)) == sums(dit())


def test_distributed_data_parallel(tiers: Tiers) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        inner = AutoMem(dit(), tiers=tiers)
        model = DistributedDataParallel(inner)
        assert manager(model) is manager(inner)
        loss = partial(loss_of, inner=inner)
        train(model, loss=loss).assert_same(unmanaged(dit))
    finally:
        del model, loss
        gc.collect()
        dist.destroy_process_group()


def test_weights_that_others_move_and_fill_late(tiers: Tiers) -> None:
    """As shared weights do: all in one flat buffer, and values that arrive only when asked for."""
    model = dit()
    waited: list[int] = []
    model = AutoMem(model, tiers=tiers, before_load=lambda parameters: waited.append(len(parameters)))
    managing = managed(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    flat = torch.zeros(sum(parameter.numel() for parameter in trained))
    start = 0
    for parameter in trained:
        view = flat[start : start + parameter.numel()].view(parameter.shape)
        view.copy_(parameter.detach())
        parameter.data = view
        start += parameter.numel()
    train(model, before_step=managing.begin_step).assert_same(unmanaged(dit))
    stop = flat.data_ptr() + flat.nbytes
    assert all(flat.data_ptr() <= parameter.data_ptr() < stop for parameter in trained)


def test_frozen_and_shared_parameters(tiers: Tiers) -> None:
    def make() -> nn.Module:
        model = mlps()
        model.blocks[1].requires_grad_(False)
        model.blocks[3][1] = model.blocks[0][1]  # type: ignore[index]
        model.blocks[2][3].weight = model.blocks[0][3].weight  # type: ignore[index]
        return model

    train(AutoMem(make(), tiers=tiers)).assert_same(of_plain(make))


class Twice(nn.Module):
    """Calls each of its blocks twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlps(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner.first(x)
        for block in (*self.inner.blocks, *self.inner.blocks):
            x = x + block(x)
        return self.inner.last(x)


def test_modules_that_are_called_twice(make_tiers: Callable[..., Tiers]) -> None:
    model = AutoMem(Twice(), tiers=make_tiers(4, file=True))
    train(model).assert_same(of_plain(Twice))
    trace = managed(model).trace
    assert trace is not None
    assert "inner.blocks.0.1#2" in [unit.name for unit in trace.units]


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_other_back_ends(make_tiers: Callable[..., Tiers], use_backend: Callable[[str], None], backend: str) -> None:
    use_backend(backend)
    model = AutoMem(dit(2), tiers=make_tiers(12, file=True))
    train(model, steps=2).assert_same(of_plain(partial(dit, 2), steps=2))
    assert managed(model).counters().offloaded_bytes + managed(model).counters().loaded_bytes > 0


def unet() -> UNet2DModel:
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


def vit() -> DiTTransformer2DModel:
    torch.manual_seed(5)
    return DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=4,
        out_channels=4,
        num_layers=3,
        sample_size=32,
        dropout=0.1,
    )


def loss_of_unet(model: nn.Module, seed: int) -> Tensor:
    x = torch.randn(8, 4, 32, 32, generator=torch.Generator().manual_seed(seed))
    return model(x, torch.arange(8) * 100).sample.pow(2).mean()


def loss_of_vit(model: nn.Module, seed: int) -> Tensor:
    torch.manual_seed(seed)  # of its dropout
    x = torch.randn(2, 4, 32, 32)
    return model(x, timestep=torch.tensor([3, 700]), class_labels=torch.tensor([1, 2])).sample.pow(2).mean()


@pytest.mark.parametrize(
    ("make", "loss", "budget"), [(unet, loss_of_unet, 12), (vit, loss_of_vit, 4)], ids=["unet", "vit"]
)
def test_models_of_another_library(
    make_tiers: Callable[..., Tiers],
    make: Callable[[], nn.Module],
    loss: Callable[[nn.Module, int], Tensor],
    budget: int,
) -> None:
    expected = of_plain(make, loss=loss)
    for file in (False, True):
        model = AutoMem(make(), tiers=make_tiers(budget, file=file))
        train(model, loss=loss).assert_same(expected)
        assert min(managed(model).counters().loaded_bytes, managed(model).counters().offloaded_bytes) > 0
        managed(model).close()
