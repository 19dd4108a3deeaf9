"""Rank program for tests of user-defined modules: `custom_loop_program.py <ranks> <folder> <scene>...`; one line on success.

N samples, T tokens, D width, C channels.
"""

import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from dithc.core.logging import UserError
from dithc.engine.comm import Group, connect_ranks
from dithc.engine.comm.gradients import buckets
from dithc.train import CheckpointManager, Optimizer, Strategy
from dithc.train.strategies.first_pass import mean_square
from tests.train.optimizer.zero_program import assert_same, send_late

SAMPLES, TOKENS, VOCABULARY, SIDE, CLASSES, STEPS = 4, 6, 24, 8, 5, 4
CLIP = 0.05  # below the norms of these gradients
# Unit roundoff, times the longest sum (samples x 8 x 8 positions of a convolution's gradient), times the consecutive
# layers.
FP32 = 2**-24 * SAMPLES * SIDE**2 * 8


GROUPS = partial(nn.GroupNorm, 2)


class ConvNet(nn.Module):
    """Convolutions, a norm over groups or over the batch, torch's attention, a dropout."""

    def __init__(self, norm: Callable[[int], nn.Module] = GROUPS, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), norm(16), nn.SiLU())
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)  # (N, T, C)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        out: Tensor = self.head(self.dropout(x.mean(1)))
        return out


class LanguageModel(nn.Module):
    """Language model with unusual reads of weights.

    Its parts are in a dictionary that is not called. The head shares the weights of the embedding, one weight belongs
    to a part that is not called, and one bias is read before its part is called.
    """

    def __init__(self) -> None:
        super().__init__()
        parts = {"embedding": nn.Embedding(VOCABULARY, 16), "lstm": nn.LSTM(16, 16, num_layers=2, batch_first=True)}
        self.parts = nn.ModuleDict(parts | {"norm": nn.LayerNorm(16)})
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.parts["embedding"].weight
        self.uncalled, self.read_early = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        bias = self.read_early.bias * 2
        x = self.parts["embedding"](tokens)  # (N, T, D)
        x, (state, _) = self.parts["lstm"](x)
        x = functional.linear(x, self.uncalled.weight, bias)
        return self.head(self.parts["norm"](self.read_early(x))), {"state": state}


MODELS: dict[str, Callable[[], nn.Module]] = {"images": ConvNet, "tokens": LanguageModel}


def build(kind: Callable[[], nn.Module]) -> nn.Module:
    """Return a model with the same weights in every call."""
    torch.manual_seed(0)
    return kind()


def batch_of(model: nn.Module, step: int, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(step)
    if isinstance(model, ConvNet):
        return torch.randn(samples, 3, SIDE, SIDE, generator=draws), torch.randint(CLASSES, (samples,), generator=draws)
    tokens = torch.randint(VOCABULARY, (samples, TOKENS + 1), generator=draws)
    return tokens[:, :-1], tokens[:, 1:].reshape(-1)


def loss_of(output: Any, expected: Tensor) -> Tensor:
    """Return the mean over all predictions."""
    logits = output[0] if isinstance(output, tuple) else output
    return functional.cross_entropy(logits.flatten(0, -2), expected)


class CustomLoop:
    """Custom training loop: each rank trains on its share of the batch."""

    def __init__(self, model: nn.Module, group: Group, sharding: str = "none", **settings: Any) -> None:
        self.model, self.group = model, group
        self.strategy = Strategy(model, group, sharding=sharding)
        self.net = self.strategy.prepare(batch_of(model, 0, samples=1)[0])
        self.optimizer = Optimizer(self.strategy, **{"lr": 1e-2, "weight_decay": 0.1, "clip": CLIP} | settings)
        self.losses: list[float] = []

    def backward(self, step: int) -> None:
        torch.manual_seed(1000 * step + self.group.rank)  # for dropouts
        x, y = batch_of(self.model, step, SAMPLES * self.group.size)
        share = slice(self.group.rank * SAMPLES, (self.group.rank + 1) * SAMPLES)
        loss = loss_of(self.net(x[share]), y.view(len(x), -1)[share].reshape(-1))
        self.strategy.backward(loss)
        self.losses.append(loss.item())

    def steps(self, first: int, last: int) -> dict[str, Tensor]:
        for step in range(first, last + 1):
            self.backward(step)
            values = self.optimizer.step()
            assert values["grad_norm"] > CLIP, "clipping has to have an effect"
        return self.weights()

    def weights(self) -> dict[str, Tensor]:
        self.strategy.wait_for_weights()
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def gradients(group: Group, _: Path) -> None:
    """Gradients equal one process with the joined batch, in float64, and are bitwise equal on all ranks."""
    for name, kind in MODELS.items():
        training, exact = CustomLoop(build(kind), group), build(kind).double()
        training.backward(1)
        x, y = batch_of(exact, 1, SAMPLES * group.size)
        loss_of(exact(x.double() if x.is_floating_point() else x), y).backward()
        local = {name: value.grad for name, value in training.model.named_parameters()}
        for part, expected in exact.named_parameters():
            if expected.grad is None:
                assert (name, part, local[part]) == ("tokens", "uncalled.bias", None)
                continue
            difference = (local[part].double() - expected.grad).norm() / expected.grad.norm()
            assert difference < FP32, (name, part, difference)
        gathered = group.gather_objects(local)
        used = [part for part, value in local.items() if value is not None]
        assert all(torch.equal(other[part], local[part]) for other in gathered for part in used), name


def micro_batches(group: Group, _: Path) -> None:
    """Summed losses, in several passes, yield the gradient of the mean over the complete batch."""
    training, whole = CustomLoop(build(LanguageModel), group), CustomLoop(build(LanguageModel), group)
    whole.backward(1)
    x, y = batch_of(whole.model, 1, SAMPLES * group.size)
    count = SAMPLES // 2
    for part in range(2):
        rows = slice(group.rank * SAMPLES + part * count, group.rank * SAMPLES + (part + 1) * count)
        loss = loss_of(training.net(x[rows]), y.view(len(x), -1)[rows].reshape(-1)) * (count * TOKENS)
        training.strategy.backward(loss, over=y.numel(), last=part == 1)
    for one, other in zip(training.model.parameters(), whole.model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert other.grad is None or (one.grad - other.grad).norm() <= FP32 * other.grad.norm()


def zero1_equals_plain(group: Group, _: Path) -> None:
    """ZeRO-1 trains bitwise like the plain optimizer, for any module."""
    for name, kind in MODELS.items():
        plain, shared = (CustomLoop(build(kind), group, sharding) for sharding in ("none", "zero1"))
        assert_same(shared.steps(1, STEPS), plain.steps(1, STEPS))
        assert shared.losses == plain.losses, name
        counts = [sum(value.numel() for value in one.optimizer.state().values()) for one in (shared, plain)]
        assert counts[0] < counts[1]
        assert sum(group.gather_objects(counts[0])) == counts[1] + group.size - 1, (
            "every number once, but the count of updates"
        )


def late_weights(group: Group, _: Path) -> None:
    """No weight is read before all ranks' weights have arrived, wherever a module reads it: NaN until a wait."""
    gather = dist.all_gather_single
    for name, kind in MODELS.items():
        truth = CustomLoop(build(kind), group)
        truth.steps(1, 3)
        dist.all_gather_single = partial(send_late, gather)
        try:
            late = CustomLoop(build(kind), group, "zero1")
            late.steps(1, 3)
            assert late.losses == truth.losses, name
        finally:
            dist.all_gather_single = gather


def prepare_keeps_state(group: Group, _: Path) -> None:
    """`prepare` does not change weights, statistics and random numbers; statistics then equal rank 0's."""
    model = build(partial(ConvNet, nn.BatchNorm2d, 0.5))
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    strategy = Strategy(model, group)
    strategy.prepare(torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(group.rank)))
    assert torch.equal(torch.rand(3), expected)
    assert_same(dict(model.state_dict()), before)
    strategy.backward(strategy.module(batch_of(model, group.rank)[0]).square().mean())
    found = group.gather_objects(model.stem[1].state_dict())
    assert not torch.equal(found[0]["running_mean"], before["stem.1.running_mean"])
    for other in found:
        assert_same(other, found[0])


def resumed_run(group: Group, folder: Path) -> None:
    """A run resumed from a checkpoint bitwise equals an uninterrupted run."""

    def channels_last() -> nn.Module:
        return ConvNet(nn.BatchNorm2d, 0.5).to(memory_format=torch.channels_last)

    for name, kind in {"statistics": channels_last, "tokens": LanguageModel}.items():
        for sharding in ("none", "zero1"):
            truth = CustomLoop(build(kind), group, sharding).steps(1, STEPS)
            for last in (STEPS // 2, STEPS):
                training = CustomLoop(build(kind), group, sharding)
                checkpoints = CheckpointManager(
                    folder / f"{name}-{sharding}", group, training.optimizer, every=3, metadata={"a": 1}
                )
                with checkpoints:
                    assert checkpoints.step == (0 if last < STEPS else STEPS // 2)
                    for step in range(checkpoints.step + 1, last + 1):
                        training.steps(step, step)
                        assert checkpoints.after(step)
                assert (checkpoints.step, checkpoints.status) == (last, 0)
            assert_same(training.weights(), truth)
    with (
        pytest.raises(UserError, match="metadata differs"),
        CheckpointManager(folder / "tokens-none", group, training.optimizer, metadata={"a": 2}),
    ):
        pass


def other_optimizers(group: Group, _: Path) -> None:
    """torch's optimizers use the summed gradients, cleared or zeroed between steps, like those of the joined batch."""
    alone, *several = (build(ConvNet) for _ in range(3))
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        x, y = batch_of(alone, step, SAMPLES * group.size)
        optimizer.zero_grad()
        loss_of(alone(x), y).backward()
        optimizer.step()
    for model, forget in zip(several, (True, False), strict=True):
        training, optimizer = CustomLoop(model, group), torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, STEPS + 1):
            optimizer.zero_grad(set_to_none=forget)
            training.backward(step)
            optimizer.step()
        for local, expected in zip(model.parameters(), alone.parameters(), strict=True):
            assert (local - expected).norm() <= STEPS * FP32 * max(expected.norm().item(), 1.0)


def rejected_misuse(group: Group, _: Path) -> None:
    """Misuse raises an error on every rank."""
    ready = CustomLoop(build(ConvNet), group)
    picture = torch.zeros(1, 3, SIDE, SIDE)

    def expect_error(message: str, call: Callable[[], object]) -> None:
        with pytest.raises(UserError, match=message):
            call()

    def other(rank_sees: Callable[[nn.Module], object]) -> nn.Module:
        model = build(ConvNet)
        if group.rank == group.size - 1:
            rank_sees(model)
        return model

    def uneven(model: nn.Module) -> None:
        model.forward = lambda x: model.head(torch.zeros(1, 16))

    expect_error("`prepare` of a strategy", lambda: ready.strategy.prepare(picture))
    wider = other(lambda model: setattr(model, "head", nn.Linear(16, CLASSES + 1)))
    expect_error(r"rank 1\n.*head.weight of torch.float32 \(6, 16\)", lambda: Strategy(wider, group))
    more = other(lambda model: setattr(model, "more", nn.Linear(1, 1)))
    expect_error("different: more.weight, more.bias", lambda: Strategy(more, group))
    numbers = other(lambda model: nn.init.ones_(model.head.weight))
    expect_error("other values than rank 0 in head.weight", lambda: Strategy(numbers, group))
    expect_error("none of .* on rank 1", lambda: Strategy(other(uneven), group).prepare(picture))
    expect_error("torch.bfloat16", lambda: Strategy(build(ConvNet).bfloat16(), group))
    expect_error("no trainable parameter", lambda: Strategy(build(ConvNet).requires_grad_(False), group))
    expect_error("sparse gradients", lambda: Strategy(nn.Embedding(3, 2, sparse=True), group))
    expect_error("uninitialized parameters", lambda: Strategy(nn.LazyLinear(2), group))
    expect_error("a strategy before `prepare`", lambda: Strategy(build(ConvNet), group).backward(torch.ones(())))
    frozen = Strategy(build(ConvNet), group)
    expect_error(
        "pass `loss_of` to `prepare`", lambda: frozen.prepare(picture, loss_of=lambda _: mean_square({"loss": 0.0}))
    )
    ready.backward(1)
    expect_error("unused gradients of the previous step", lambda: ready.backward(2))
    ready.optimizer.step()
    ready.net(picture).sum().backward()
    expect_error("gradients that are not summed over the ranks", ready.optimizer.step)


SCENES: dict[str, Callable[[Group, Path], None]] = {
    scene.__name__: scene
    for scene in (
        gradients,
        micro_batches,
        zero1_equals_plain,
        late_weights,
        prepare_keeps_state,
        resumed_run,
        other_optimizers,
        rejected_misuse,
    )
}


def main() -> None:
    buckets.MIN_BUCKET_BYTES = 1 << 14  # several buckets, of one or several parameters
    with connect_ranks(int(sys.argv[1]), timeout_seconds=600) as group:
        torch.set_num_threads(1)
        for name in sys.argv[3:]:
            SCENES[name](group, Path(sys.argv[2]))
        sys.stdout.write(f"rank {group.rank} of {group.size} is done\n")


if __name__ == "__main__":
    main()
