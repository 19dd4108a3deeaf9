"""Rank program for tests of sharded optimizer state: `zero_program.py <ranks> <scene>...`; prints one line on success."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dithc.config import MachineConfig, training
from dithc.core.tensor_files import assemble
from dithc.engine.comm import CommConfig, Group, connect_ranks
from dithc.engine.comm.gradients import buckets
from dithc.engine.comm.launch import exit_report
from dithc.latents import Batch
from dithc.model import DiT
from dithc.train.checkpoints.state import TrainingState
from dithc.train.memory_tiers import TrainingMemory
from dithc.train.pipeline import trainer_of
from dithc.train.step.step import Trainer
from dithc.train.strategies.layout import RankGrid

SIDE, CLASSES = 8, 3
MODEL = {"hidden_size": 32, "depth": 2, "num_heads": 2}
STEPS = 4


class Source:
    def __init__(self, images: int) -> None:
        self._images = images

    def batch(self, step: int, part: slice) -> Batch:
        draws = torch.Generator().manual_seed(step)
        size = (self._images, 4, SIDE, SIDE)
        x, noise = torch.randn(size, generator=draws), torch.randn(size, generator=draws)
        y = torch.randint(CLASSES, (self._images,), generator=draws)
        t = torch.randint(1000, (self._images,), generator=draws)
        return Batch(x[part], y[part], t[part], noise[part])


class Uneven(DiT):
    """DiT with an unused layer, and with a layer that only rank 0 uses, in every second step."""

    rank, step = 0, 0

    def add_layers(self, rank: int) -> None:
        self.rank = rank
        self.never, self.rare = nn.Linear(5, 7), nn.Linear(4, 4)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        if self.rank == 0 and self.step % 2 == 1:
            x = x + self.rare(x.movedim(1, -1)).movedim(-1, 1)
        return super().forward(x, t, y)


def run_of(group: Group, **changes: object) -> training.RunConfig:
    values = {
        "dataset": "none",
        "global_batch_size": 2 * group.size,
        "lr": 1e-3,
        "weight_decay": 0.1,
        "max_grad_norm": 0.05,
    }
    return training.RunConfig.model_validate(values | {"warmup_steps": 2} | changes)


def prepare(
    group: Group,
    sharding: training.Sharding,
    run: training.RunConfig,
    *,
    memory: TrainingMemory | None = None,
    **changes: int,
) -> tuple[Trainer, TrainingState]:
    torch.manual_seed(0)
    model = Uneven.from_preset(
        "DiT-S/2", input_size=(SIDE, SIDE), in_channels=4, num_classes=CLASSES, **MODEL | changes
    )
    model.add_layers(group.rank)
    with torch.no_grad():
        for parameter in model.parameters():  # the last layer and the gates are zero, which would hide most gradients
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    source, memory = Source(run.global_batch_size), memory or TrainingMemory()
    firsts = tuple(group.gather_objects(group.rank - group.local_rank))
    layout = RankGrid(name="dp", rank=group.rank, size=group.size, first_ranks=firsts)
    machine = MachineConfig(sharding=sharding)
    trainer = trainer_of(run, machine, group, source, model=model, layout=layout, memory=memory)
    memory.follow(trainer.state)
    return trainer, trainer.state


def train(trainer: Trainer, state: TrainingState, *, until: int) -> list[dict[str, float]]:
    rows = []
    while state.step < until:
        state.step += 1
        state.model.step = state.step
        rows.append(trainer.step(state.step))
    return rows


def full_state(state: TrainingState, group: Group) -> dict[str, Tensor]:
    """Return weights, average and optimizer state, assembled from all ranks."""
    state.strategy.wait_for_weights()
    sharded = state.strategy.sharded_state
    found = {f"weight {name}": value for name, value in state.model.state_dict().items()}
    exact = [("weight", sharded.weight_pieces(state.model.state_dict()))] if sharded and sharded.is_rounded else []
    for kind, pieces in (*exact, ("ema", state.ema.pieces()), ("adam", state.optimizer.pieces())):
        gathered = [piece for rank in group.gather_objects(pieces) for piece in rank]
        each = {
            (piece.name, piece.dim, piece.start): piece for piece in gathered
        }  # several ranks may hold the same piece
        found |= {f"{kind} {name}": value for name, value in assemble(each.values()).items()}
    return {name: value.clone() for name, value in found.items()}


def select_kind(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind} "): value for name, value in tensors.items() if name.startswith(f"{kind} ")}


def load(state: TrainingState, tensors: dict[str, Tensor], *, step: int) -> None:
    state.strategy.wait_for_weights()
    state.model.load_state_dict(select_kind(tensors, "weight"))
    state.strategy.load_from_module()
    state.ema.load(select_kind(tensors, "ema"))
    state.optimizer.load(select_kind(tensors, "adam"))
    state.step = step


def assert_same(found: dict[str, Tensor], truth: dict[str, Tensor]) -> None:
    assert found.keys() == truth.keys(), found.keys() ^ truth.keys()
    for name, value in truth.items():
        assert torch.equal(found[name], value), name


def losses(rows: list[dict[str, float]]) -> list[float]:
    return [row["loss"] for row in rows]


def same_training(group: Group) -> None:
    """Losses, weights, averages and moments are bitwise equal with and without ZeRO-1."""
    for changes in (
        {},
        {"dtype": "bf16", "micro_batch_size": 1},
        {"activation_checkpointing": "block", "max_grad_norm": None},
    ):
        assert_same_training(group, run_of(group, **changes), until=STEPS)


def few_steps(group: Group) -> None:
    """Compare `same_training` for a single run."""
    assert_same_training(group, run_of(group, micro_batch_size=1), until=3)


def within_nodes(group: Group) -> None:
    """The ranks of each node share the state; results equal unsharded training, also with Muon."""
    assert_same_training(group, run_of(group, micro_batch_size=1), until=3, sharding="node")
    sizes = [
        sum(value.numel() for value in prepare(group, sharding, run_of(group))[1].ema.state.values())
        for sharding in ("none", "node")
    ]
    assert sizes[1] / sizes[0] == pytest.approx(1 / group.local_size, rel=0.1)
    run = run_of(group, optimizer={"kind": "muon"})
    plain, sharded = prepare(group, "zero1", run), prepare(group, "node", run)
    assert losses(train(*sharded, until=3)) == losses(train(*plain, until=3))
    assert_same(full_state(sharded[1], group), full_state(plain[1], group))


def assert_same_training(
    group: Group, run: training.RunConfig, *, until: int, sharding: training.Sharding = "zero1"
) -> None:
    plain, sharded = prepare(group, "none", run), prepare(group, sharding, run)
    truth, rows = train(*plain, until=until), train(*sharded, until=until)
    assert losses(rows) == losses(truth)
    assert max(abs(row["grad_norm"] / other["grad_norm"] - 1) for row, other in zip(rows, truth, strict=True)) < 1e-12
    assert all(row["grad_norm"] > 0.05 for row in rows), "clipping has to have an effect"
    found = full_state(sharded[1], group)
    assert_same(found, full_state(plain[1], group))
    fresh = prepare(group, "none", run)[1].model.state_dict()
    assert torch.equal(found["weight never.weight"], fresh["never.weight"])
    assert not torch.equal(found["weight rare.weight"], fresh["rare.weight"])


def late_copied_weights(group: Group) -> None:
    """As `late_weights`, with each layer on a copy of its weights that starts during the previous layer."""

    def copied(*args: Any, **kwargs: Any) -> Any:
        found = true_plan(*args, **kwargs)
        ahead = {"weights": "copied", "forward_ahead": 1, "backward_ahead": 1}
        return replace(found, units={name: replace(decision, **ahead) for name, decision in found.units.items()})

    managers = importlib.import_module("dithc.engine.automem.manager")
    gather, true_plan = dist.all_gather_single, managers.plan_of
    run, wide = run_of(group), {"hidden_size": 128}
    plain = prepare(group, "none", run, **wide)
    plain[1].model.rank = group.size
    truth = losses(train(*plain, until=4))
    dist.all_gather_single, managers.plan_of = partial(send_late, gather), copied
    try:
        with TrainingMemory(training.MemoryConfig(fast_memory_gib=0.1)) as memory:
            sharded = prepare(group, "zero1", run, memory=memory, **wide)
            sharded[1].model.rank = group.size
            rows = train(*sharded, until=4)
            assert losses(rows) == truth
            assert all(row["loaded_bytes"] > 1 << 20 for row in rows[2:]), rows
            del sharded
    finally:
        dist.all_gather_single, managers.plan_of = gather, true_plan


def send_late(gather: Any, full: Tensor, share: Tensor, *, group: Any = None, async_op: bool = False) -> Any:
    """Replace all_gather: the shares of other ranks are NaN until a wait."""
    if not async_op:
        return gather(full, share, group=group)
    kept = share.clone()
    full.fill_(torch.nan)
    share.copy_(kept)
    return Late(partial(gather, full, share, group=group))


class Late:
    def __init__(self, arrive: Callable[[], None]) -> None:
        self.wait = arrive


def rounded_weights(group: Group) -> None:
    """With bf16 on the wire, training bitwise equals one rank with exact weights that computes with rounded weights."""
    run = run_of(group)
    sharded, played = prepare(group, "zero1", run), prepare(group, "none", run)
    play_rounding(played[1])
    rows, truth = train(*sharded, until=STEPS), train(*played, until=STEPS)
    assert losses(rows) == losses(truth)
    found = full_state(sharded[1], group)
    play_rounding(played[1], exact=True)
    assert_same(found, full_state(played[1], group))
    trained = {name: value for name, value in sharded[1].model.named_parameters() if value.requires_grad}
    for name, value in trained.items():
        assert torch.equal(value, found[f"weight {name}"].bfloat16().float()), (
            f"{name} is not what all ranks compute with"
        )
    assert any(not torch.equal(value, found[f"weight {name}"]) for name, value in trained.items())
    # An exact loss differs by the rounding of the weights of each consecutive layer (patch, 2 blocks of 4, final), to
    # first order, twice because it is squared.
    plain = losses(train(*prepare(group, "none", run), until=STEPS))
    assert all(abs(a / b - 1) < 2 * 10 * 2**-9 for a, b in zip(losses(rows), plain, strict=True)), (rows, plain)
    first, second = prepare(group, "zero1", run), prepare(group, "zero1", run)
    train(*first, until=STEPS // 2)
    load(second[1], full_state(first[1], group), step=STEPS // 2)
    train(*second, until=STEPS)
    assert_same(full_state(second[1], group), found)


def play_rounding(state: TrainingState, *, exact: bool = False) -> None:
    """Let the model hold rounded weights except during updates; with `exact` it gets the exact weights back."""
    model, optimizer = state.model, state.optimizer
    if exact:
        model.load_state_dict(optimizer.exact)
        return
    optimizer.exact, plain = {name: value.clone() for name, value in model.state_dict().items()}, optimizer.update

    @torch.no_grad()
    def round_all() -> None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.bfloat16())

    def update(number: int, **settings: Any) -> float:
        model.load_state_dict(optimizer.exact)
        rate = plain(number, **settings)
        optimizer.exact = {name: value.clone() for name, value in model.state_dict().items()}
        round_all()
        return rate

    optimizer.update = update
    round_all()


def released_gradients(group: Group) -> None:
    """ZeRO-2 equals ZeRO-1, bitwise with one micro-batch, and keeps gradients of the own share only."""
    for changes in ({}, {"micro_batch_size": 1}):
        run = run_of(group, **changes)
        first, second = prepare(group, "zero1", run, hidden_size=128), prepare(group, "zero2", run, hidden_size=128)
        truth, rows = train(*first, until=STEPS), train(*second, until=STEPS)
        found, expected = full_state(second[1], group), full_state(first[1], group)
        if changes:  # sums over ranks come before sums over micro-batches
            torch.testing.assert_close(losses(rows), losses(truth), rtol=1e-5, atol=0)
            for name in expected:
                torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
            sent = [sum(row["comm_bytes"] for row in each) for each in (rows, truth)]
            assert 1.3 < sent[0] / sent[1] < 2, "gradients are sent for each micro-batch"
        else:
            assert losses(rows) == losses(truth)
            assert_same(found, expected)
        kept = [kept_elsewhere(each[1]) for each in (first, second)]
        assert kept[0] > 0.9, kept
        assert kept[1] == 0.0, kept


def kept_elsewhere(state: TrainingState) -> float:
    """Return the share of gradients that are not zero on complete pages outside of this rank's share."""
    reducer, page = state.strategy.sharded_state.reducer, 1024
    parts = []
    for bucket in reducer.arrangement.buckets:
        share = bucket.share(reducer.rank, reducer.size)
        for first, last in ((bucket.start, share.start), (share.stop, bucket.stop)):
            parts.append(reducer.buffer[first + page : max(first + page, last - page)])
    return (torch.cat(parts) != 0).double().mean().item()


def measured_exchange(group: Group) -> None:
    """A step reports its communication costs: the sums of this step and the weights of the previous step."""
    trainer, state = prepare(group, "zero1", run_of(group))
    rows = train(trainer, state, until=3)
    reducer = trainer.strategy.sharded_state.reducer
    gradients = reducer.buffer.nbytes
    shares = sum(bucket.stop - bucket.start for bucket in reducer.arrangement.buckets) * 4 // group.size
    assert [row["comm_bytes"] for row in rows] == [gradients, gradients + shares, gradients + shares]
    for row in rows:
        assert row["exposed_seconds"] > 0
        assert row["communication_seconds"] > 0
        assert 0 <= row["overlap_fraction"] <= 1


SCENES: dict[str, Callable[[Group], None]] = {
    scene.__name__: scene
    for scene in (
        same_training,
        few_steps,
        within_nodes,
        released_gradients,
        late_copied_weights,
        rounded_weights,
        measured_exchange,
    )
}


def rank_of(environment: Mapping[str, str]) -> int:
    """Return this process's rank from the variables of any launcher."""
    return next(int(environment[name]) for name in exit_report.RANK_VARIABLES if name in environment)


def main() -> None:
    if "DITHC_TEST_NODES" in os.environ:  # emulated: the first ranks are on one node, the last on another
        number = rank_of(os.environ) * int(os.environ["DITHC_TEST_NODES"]) // int(sys.argv[1])
        os.environ["DITHC_NODE_NAME"] = f"node{number}"
    buckets.MIN_BUCKET_BYTES = 1 << 14  # several buckets, of one or several parameters
    config = CommConfig(**json.loads(os.environ.get("DITHC_TEST_COMM", "{}")))
    with config.active(), connect_ranks(int(sys.argv[1]), timeout_seconds=600) as group:
        torch.set_num_threads(1)
        for name in sys.argv[2:]:
            SCENES[name](group)
        sys.stdout.write(f"rank {group.rank} of {group.size} is done\n")


if __name__ == "__main__":
    main()
