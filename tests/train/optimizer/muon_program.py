"""Rank program for tests of Muon: `muon_program.py <ranks> <scene>...`; prints one line on success."""

from typing import Any

import torch
from torch import Tensor
from zero_program import (
    SCENES,
    STEPS,
    assert_same,
    assert_same_training,
    full_state,
    load,
    losses,
    main,
    prepare,
    run_of,
    select_kind,
    train,
)

from dithc.config import training
from dithc.engine.comm import Group
from dithc.train.checkpoints.state import TrainingState
from dithc.train.step.step import Trainer

# Unit roundoff of fp32 times the longest dot product (the MLP's width, 4 x 32) times the 10 products of a forward pass
# and the 20 of a backward pass: the worst rounding of a gradient, to first order and relative to its norm. The rounding
# of an update is of the same order, because the iteration amplifies small signal and small rounding equally.
ROUNDING = 2**-24 * 128 * 30


def muon_of(group: Group, **changes: Any) -> training.RunConfig:
    return run_of(group, **{"optimizer": {"kind": "muon"}, **changes})


def prepare_uneven(
    group: Group, run: training.RunConfig, sharding: training.Sharding = "none"
) -> tuple[Trainer, TrainingState]:
    """Return a trainer and state in which every rank calls the same layers."""
    trainer, state = prepare(group, sharding, run)
    state.model.rank = group.size
    return trainer, state


def muon_sharded(group: Group) -> None:
    """Losses, weights, averages, moments and momenta are bitwise equal with and without ZeRO-1."""
    for changes in ({}, {"dtype": "bf16", "micro_batch_size": 1}):
        assert_same_training(group, muon_of(group, **changes), until=STEPS)


def muon_alone(group: Group) -> None:
    """The weights of several ranks equal the weights of one rank within rounding."""
    run = muon_of(group)
    single, distributed = prepare_uneven(Group(), run), prepare_uneven(group, run)
    truth, rows = losses(train(*single, until=STEPS)), losses(train(*distributed, until=STEPS))
    assert all(abs(a / b - 1) < ROUNDING for a, b in zip(rows, truth, strict=True)), (rows, truth)
    found, expected = full_state(distributed[1], group), full_state(single[1], Group())
    start = select_kind(full_state(prepare_uneven(Group(), run)[1], Group()), "weight")
    assert found.keys() == expected.keys()
    names = {name.removeprefix("momentum.") for name in select_kind(found, "adam") if name.startswith("momentum.")}
    assert len(names) == 2 * 4
    for name in names:
        change, other = (tensors[f"weight {name}"] - start[name] for tensors in (found, expected))
        assert distance(change, other) < ROUNDING, (name, distance(change, other))


def distance(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def muon_owned(group: Group) -> None:
    """Each momentum is on one rank, ranks have similar work, and replicated tensors are bitwise equal on all ranks."""
    trainer, state = prepare_uneven(group, muon_of(group))
    first, second = (row["comm_bytes"] for row in train(trainer, state, until=2))
    local = {name: value for name, value in state.optimizer.state().items() if name.startswith("momentum.")}
    everyone = group.gather_objects({name: value.numel() for name, value in local.items()})
    assert second - first == 4 * (group.size - 1) * sum(everyone[group.rank].values()), "updates go to all others, once"
    names = [name for rank in everyone for name in rank]
    assert len(names) == len(set(names)) == 2 * 6
    assert sum(sum(rank.values()) for rank in everyone) == 2 * 12 * 32**2
    assert max(sum(rank.values()) for rank in everyone) <= 2 * 12 * 32**2 / group.size + 4 * 32**2
    assert all(bool(value.any()) for value in local.values())
    sums = group.gather_objects({name: value.double().sum().item() for name, value in state.model.state_dict().items()})
    assert all(one == sums[0] for one in sums)
    replicated = group.gather_objects(state.ema.state)
    assert all(torch.equal(value, replicated[0][name]) for one in replicated for name, value in one.items())


def muon_resumed(group: Group) -> None:
    """Runs with and without ZeRO-1 continue each other bitwise, and one rank continues a run of several ranks."""
    run = muon_of(group)
    uninterrupted = prepare(group, "none", run)
    train(*uninterrupted, until=STEPS)
    truth = full_state(uninterrupted[1], group)
    kinds: tuple[tuple[training.Sharding, training.Sharding], ...] = (("zero1", "none"), ("none", "zero1"))
    for first, second in kinds:
        started, ended = prepare(group, first, run), prepare(group, second, run)
        train(*started, until=STEPS // 2)
        half = full_state(started[1], group)
        load(ended[1], half, step=STEPS // 2)
        train(*ended, until=STEPS)
        assert_same(full_state(ended[1], group), truth)
    single = prepare(Group(), "none", run)[1]
    load(single, half, step=STEPS // 2)
    assert_same(full_state(single, Group()), half)


SCENES |= {scene.__name__: scene for scene in (muon_sharded, muon_alone, muon_owned, muon_resumed)}

if __name__ == "__main__":
    main()
