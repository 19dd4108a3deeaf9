"""Supervision within the network: its formulas, whom it reaches, and that it leaves nothing else as a trace."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dithc.comm import Group
from dithc.log import UserError, read_metrics
from dithc.model import DiT
from dithc.runs import Store
from dithc.tensors import read_tensors
from dithc.train import DONE, train
from dithc.train import align as align_module
from dithc.train.align import Alignment
from dithc.train.nonfinite import NotFinite
from dithc.train.strategy import Strategy
from dithc.train.strategy_layout import Layout
from tests.train.conftest import SMALL, small_run
from tests.train.test_strategies import FP32, assert_alike, several_ranks, ten, train_on_ranks

DEEP = SMALL | {"depth": 3}
LAYER = {"to": "layer", "at": 1, "target": 3, "weight": 0.5}
LATENTS = {"to": "latents", "at": 2, "weight": 0.5}
BOTH = pytest.mark.parametrize("align", [LAYER, LATENTS], ids=["layer", "latents"])


def network() -> DiT:
    """A small one all of whose weights are drawn, so that its blocks do something."""
    torch.manual_seed(0)
    model = DiT.from_preset(
        "DiT-S/2", **{key: DEEP[key] for key in ("hidden_size", "depth", "num_heads")}, input_size=8, num_classes=3
    )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.2)
    return model


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, 4, 8, 8), torch.tensor([10, 900]), torch.tensor([0, 2])


def aligned(model: DiT, settings: dict[str, Any], layout: Layout | None = None) -> Alignment:
    run = small_run(model=DEEP, align=settings)
    assert run.align is not None
    strategy = Strategy(model, Layout())
    strategy.layout = layout or strategy.layout
    return Alignment(run.align, run, model, strategy, seed=7)


def tokens_of(model: DiT, x: Tensor, t: Tensor, y: Tensor) -> list[Tensor]:
    """The output of each block, by a forward pass written out."""
    tokens, c, found = model.x_embedder(x) + model.pos_embed, model.t_embedder(t) + model.y_embedder(y), []
    for block in model.blocks:
        tokens = block(tokens, c)
        found.append(tokens)
    return found


def test_layer_is_minus_the_cosine_of_tokens_and_moves_the_earlier_blocks_alone():
    model, (x, t, y) = network(), inputs()
    alignment = aligned(model, LAYER)
    with alignment.tapping() as taps:
        model(x, t, y)
    losses = alignment.losses(taps, x)
    losses.sum().backward()
    truth = copy.deepcopy(model).double()
    truth.zero_grad()
    early, _, late = tokens_of(truth, x.double(), t, y)
    one, two = early.detach().numpy(), late.detach().numpy()
    angle = (one * two).sum(2) / np.linalg.norm(one, axis=2) / np.linalg.norm(two, axis=2)
    np.testing.assert_allclose(losses.detach().numpy(), -angle.mean(1), rtol=1e-5)
    assert np.ptp(angle) > 0.1
    unit = late.detach() / late.detach().norm(dim=2, keepdim=True)
    (-(early * unit).sum(2) / early.norm(dim=2)).mean(1).sum().backward()
    reached = set()
    for (name, weight), (_, exact) in zip(model.named_parameters(), truth.named_parameters(), strict=True):
        if exact.grad is None or not exact.grad.any():
            assert weight.grad is None or not weight.grad.any(), name
            continue
        reached.add(name.split(".")[0] + (name.split(".")[1] if "blocks" in name else ""))
        scale = exact.grad.abs().max()
        assert ((weight.grad.double() - exact.grad).abs() <= 2e-4 * scale).all(), name
    assert reached == {"x_embedder", "t_embedder", "y_embedder", "blocks0"}


def test_latents_are_told_by_a_head_that_is_no_part_of_the_network():
    model, (x, t, y) = network(), inputs()
    names = list(model.state_dict())
    alignment = aligned(model, LATENTS)
    with alignment.tapping() as taps:
        model(x, t, y)
    losses = alignment.losses(taps, 3 * x)
    losses.sum().backward()
    weights = {piece.name: piece.values.double().numpy() for piece in alignment.pieces() if "weight." in piece.name}
    tokens = tokens_of(copy.deepcopy(model).double(), x.double(), t, y)[1].detach().numpy()
    hidden = tokens @ weights["weight.0.weight"].T + weights["weight.0.bias"]
    hidden = hidden / (1 + np.exp(-hidden))
    predicted = hidden @ weights["weight.2.weight"].T + weights["weight.2.bias"]
    patches = 3 * x.double().numpy().reshape(2, 4, 4, 2, 4, 2).transpose(0, 2, 4, 1, 3, 5).reshape(2, 16, 16)
    error = np.abs(predicted - patches)
    truth = np.where(error < 1, error**2 / 2, error - 0.5)
    assert (error < 1).any()
    assert (error > 1).any()
    np.testing.assert_allclose(losses.detach().numpy(), truth.mean((1, 2)), rtol=1e-5)
    assert list(model.state_dict()) == names
    assert not any(hasattr(block, "_forward_hooks") and block._forward_hooks for block in model.blocks)
    moved = [name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()]
    assert {name.split(".")[1] for name in moved if "blocks" in name} == {"0", "1"}
    assert not any("final" in name for name in moved)


def test_tokens_of_length_0_are_as_unlike_as_can_be_without_a_bad_number():
    alignment = aligned(network(), LAYER)
    early = torch.zeros(2, 16, 32, requires_grad=True)
    losses = alignment.losses([early, torch.randn(2, 16, 32)], torch.zeros(2, 4, 8, 8))
    losses.sum().backward()
    assert torch.equal(losses, torch.zeros(2))
    assert early.grad is not None
    assert torch.isfinite(early.grad).all()


def test_ranks_that_share_layers_are_refused():
    layout = Layout(name="dp+tp", size=2, tensor_size=2)
    with pytest.raises(UserError, match="share every layer"):
        aligned(network(), LAYER, layout)


def checkpoint(job) -> Store.Checkpoint:
    store, step = Store.of_run(job.out)
    return store.open(step)


def hashes(job) -> dict[str, str]:
    return {entry["path"]: entry["sha256"] for entry in checkpoint(job).files}


def rows(job) -> list[dict[str, float]]:
    return read_metrics(checkpoint(job).folder.parent / "metrics")


@BOTH
@pytest.mark.parametrize(
    "settings", [{"optimizer": {"kind": "muon"}}, {"dtype": "bf16", "micro_batch": 3}], ids=["muon", "bf16-micro"]
)
def test_training_that_was_stopped_half_way_equals_an_uninterrupted_one_to_the_bit(job, align, settings):
    settings = {"model": DEEP, "align": align | {"until": 5}} | settings
    whole, first, second = (job(store, until=until, **settings) for store, until in (("a", 6), ("b", 3), ("b", 6)))
    assert [train(part, Group()) for part in (whole, first, second)] == [DONE] * 3
    assert hashes(whole) == hashes(second)
    assert ("align.safetensors" in hashes(whole)) == (align is LATENTS)
    told = [[row.get("align") for row in rows(one)] for one in (whole, second)]
    assert told[0] == told[1]
    assert all(value is not None for value in told[0][:5])
    assert told[0][5] is None


@BOTH
def test_nothing_else_is_in_the_checkpoint_and_the_loss_stays_that_of_the_objective(job, align):
    plain, other = job("a", model=DEEP), job("b", model=DEEP, align=align)
    assert [train(one, Group()) for one in (plain, other)] == [DONE] * 2
    for file in ("model.safetensors", "ema.safetensors", "optimizer.safetensors"):
        ours, theirs = (read_tensors(checkpoint(one).folder / file) for one in (other, plain))
        assert {name: ours[name].shape for name in ours} == {name: theirs[name].shape for name in theirs}
    assert rows(other)[0]["loss"] == rows(plain)[0]["loss"]
    assert rows(other)[0]["grad_norm"] == pytest.approx(rows(plain)[0]["grad_norm"], rel=0.5)
    assert hashes(plain)["model.safetensors"] != hashes(other)["model.safetensors"]


@BOTH
def test_it_is_learnt(job, align):
    one = job(until=80, steps=80, checkpoint_every=80, lr=3e-3, model=DEEP, align=align | {"weight": 2.0})
    assert train(one, Group()) == DONE
    told = [row["align"] for row in rows(one)]
    if align is LATENTS:
        assert np.mean(told[-20:]) < 0.85 * np.mean(told[:5])
    else:
        assert told[0] == pytest.approx(-1, abs=1e-5)  # blocks begin as the identity
        assert np.mean(told[-10:]) < -0.9


@BOTH
def test_recomputed_blocks_change_no_bit_and_micro_batches_only_rounding(job, align):
    settings = {"model": DEEP, "align": align}
    plain, again, parts = (
        job("a", **settings),
        job("b", recompute="block", **settings),
        job("c", micro_batch=3, **settings),
    )
    assert [train(one, Group()) for one in (plain, again, parts)] == [DONE] * 3
    assert hashes(plain) == hashes(again)
    for name in ("align", "loss", "grad_norm"):
        assert [row[name] for row in rows(parts)] == pytest.approx([row[name] for row in rows(plain)], rel=2e-4)


def test_a_head_whose_gradient_is_not_finite_is_told_of():
    model, (x, t, y) = network(), inputs()
    alignment = aligned(model, LATENTS)
    for factor, is_good in ((1.0, True), (float("inf"), False), (float("nan"), False)):
        alignment.zero()
        with alignment.tapping() as taps:
            model(x, t, y)
        (alignment.losses(taps, x).sum() * factor).backward()
        assert alignment.finish(Group()) == is_good


def test_the_gradient_of_the_head_travels_once_and_is_counted():
    class Doubling(Group):
        """Stands in for two ranks that have the same gradients."""

        def all_reduce_(self, tensor, *, op="sum", meter=None):
            meter.sent(tensor.nbytes)
            return tensor.mul_(2)

    alignment = aligned(network(), LATENTS)
    alignment.losses([torch.randn(2, 16, 32)], torch.randn(2, 4, 8, 8)).sum().backward()
    truth = [2 * weight.grad for weight in alignment.head.parameters()]
    assert alignment.finish(Doubling())
    assert all(torch.equal(weight.grad, two) for weight, two in zip(alignment.head.parameters(), truth, strict=True))
    assert alignment.norm == pytest.approx(float(torch.cat([two.reshape(-1) for two in truth]).norm()))
    assert alignment._strategy.finish()["bytes_moved"] == 4 * (32 * 32 + 32 + 32 * 16 + 16)


def test_operations_of_the_head_are_those_that_torch_counts():
    alignment, tokens = aligned(network(), LATENTS), torch.randn(2, 16, 32, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        alignment.losses([tokens], torch.randn(2, 4, 8, 8)).sum().backward()
    run = small_run(model=DEEP, align=LATENTS | {"until": 3}, global_batch=2)
    each, sizes = counter.get_total_flops(), {"tokens": 16, "channels": 4}
    assert [run.align_flops(steps, **sizes) for steps in (1, 3, 9)] == [each, 3 * each, 3 * each]
    assert small_run(model=DEEP, align=LATENTS).align_flops(5, **sizes) == 5 * 4 * each
    assert small_run(model=DEEP, align=LAYER).align_flops(5, **sizes) == small_run().align_flops(5, **sizes) == 0


@pytest.mark.parametrize(("every", "said"), [(1, "at step 2: the weights after step 1, although"), (6, "at step 2")])
def test_weights_of_the_head_that_are_not_finite_are_found_and_not_kept(job, monkeypatch, every, said):
    true = Alignment.update

    def update(self, step):
        true(self, step)
        self.head[0].weight.detach()[0, 0] = float("nan")

    monkeypatch.setattr(Alignment, "update", update)
    one = job(model=DEEP, align=LATENTS, checkpoint_every=every)
    with pytest.raises(
        NotFinite, match=said + r"[\s\S]*rank 0: the weights of align\.0\.weight, before any layer"
    ) as caught:
        train(one, Group())
    assert caught.value.in_weights
    assert Store(next(one.store.glob("small-*"))).newest().step == 0


def test_a_gradient_of_the_head_alone_that_is_not_finite_is_told_from_that_of_the_network(job, monkeypatch):
    true = align_module._head

    def head(*sizes, seed):
        made = true(*sizes, seed=seed)
        made[0].weight.register_hook(lambda gradient: gradient * float("inf"))
        return made

    monkeypatch.setattr(align_module, "_head", head)
    said = r"the gradient of the head of `align` \([\s\S]*norm \d[^,]*, that of the head of `align` (inf|nan);"
    with pytest.raises(NotFinite, match=said + r"[\s\S]*the gradient of the weight of layer align\.0, in the"):
        train(job(model=DEEP, align=LATENTS), Group())


class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    def test_two_ranks_learn_what_one_does(self, job, tmp_path):
        ways = {
            "dp": {"strategy": "dp"},
            "ddp": {"gradients": "ddp", "micro_batch": 3},
            "zero": {"sharding": "zero1", "micro_batch": 3},
        }
        jobs = []
        for kind, align in (("layer", LAYER), ("latents", LATENTS)):
            settings = {"model": DEEP, "align": align | {"until": 8}}
            one = ten(job, f"{kind}-one", **settings)
            train(one, Group())
            jobs += [(one, ten(job, f"{kind}-{way}", **settings, **how)) for way, how in ways.items()]
        done = train_on_ranks(tmp_path, [several for _, several in jobs])
        assert done.returncode == 0, done.stderr
        for one, several in jobs:
            assert_alike(rows(several), rows(one), tolerance=FP32)
            ours, truth = ([row.get("align") for row in rows(part)] for part in (several, one))
            assert ours[:8] == pytest.approx(truth[:8], rel=FP32)
            assert ours[8:] == truth[8:] == [None, None]
