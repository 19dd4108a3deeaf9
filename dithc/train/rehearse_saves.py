"""What a checkpoint costs the training beside which it is written: steps with and without one under way, in turns."""

import time
from pathlib import Path
from statistics import median
from typing import Any, cast

from dithc.comm import Group
from dithc.config import training
from dithc.model import DiT
from dithc.runs import Store
from dithc.train.checkpoints import Saver, State
from dithc.train.job import Pace
from dithc.train.step import Trainer


def measure_saves(
    trainer: Trainer, group: Group, *, first: int, rounds: int, folder: Path, path: training.CheckpointPath = "async"
) -> list[dict[str, Any]]:
    """Saves `rounds` times while steps are made, and makes as many steps without a save.

    Args:
        trainer: warm; it makes further steps.
        group: its ranks.
        first: number of the next step.
        rounds: saves on the clock; one more before them takes the memory for the copy.
        folder: of a store for the checkpoints; all ranks write there.
        path: how checkpoints are written.

    Returns:
        For each round, in seconds of the slowest rank: `during`, steps that began while the checkpoint was under way; `without`,
        as many others, right before or right after; `stalled`, what the training waited for the save to begin; `save`, from its
        begin to its commit; and `ratio`, the median of `during` over that of `without`; `whole_ratio`, the sum of `during` and
        `stalled` over the sum of `without`.

    Raises:
        UserError: the disk is full or not writable.
    """
    strategy = trainer.strategy
    state = State(
        model=cast(DiT, strategy.module),
        ema=trainer.ema,
        optimizer=trainer.optimizer,
        strategy=strategy,
        step=first - 1,
    )
    saver = Saver(Store(folder), lease=None, group=group, said={}, pace=Pace(), keep_last=1, path=path)

    def step() -> float:
        group.barrier()
        begun = time.perf_counter()
        state.step += 1
        trainer.step(state.step)
        return time.perf_counter() - begun

    def save() -> tuple[list[float], float, float]:
        """Seconds of the steps that began beside a save, of the wait before them, and of the save."""
        group.barrier()
        begun = time.perf_counter()
        saver.save(state)
        stalled, during = time.perf_counter() - begun, []
        while saver.is_writing:
            during.append(step())
            saver.poll()
        return during, stalled, time.perf_counter() - begun

    found = []
    save()
    for turn in range(rounds):
        without = [] if turn % 2 else [step()]
        during, stalled, whole = save()
        while len(without) < max(1, len(during)):
            without.append(step())
        found.append({"during": during, "without": without, "stalled": [stalled], "save": [whole]})
    return [_summary(each) for each in zip(*group.gather_objects(found), strict=True)]


def _summary(ranks: tuple[dict[str, list[float]], ...]) -> dict[str, Any]:
    """One round, of the slowest rank in each step."""
    slowest = {name: [max(values) for values in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}
    during, without = slowest["during"], slowest["without"]
    stalled = slowest["stalled"][0]
    share = len(during) / len(without) if during else 1.0
    return {
        "during": during,
        "without": without,
        "stalled": stalled,
        "save": slowest["save"][0],
        "ratio": median(during) / median(without) if during else None,
        "whole_ratio": (sum(during) + stalled) / (sum(without) * share) if during else None,
    }
