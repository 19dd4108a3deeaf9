"""Steps of a training on random latents, with everything a training has but its files: what measurements run.

Legend: N images of a batch, C channels.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from dithc.automem import AutoMem
from dithc.comm import Group, traffic
from dithc.config import training
from dithc.diffusion import Schedule
from dithc.log import problem
from dithc.memory import peak_rss_bytes
from dithc.train.checkpoint import state_of
from dithc.train.setup import fresh_model
from dithc.train.step import Trainer
from dithc.train.strategy import Strategy, layout_on

SHAPE, NUM_CLASSES = (4, 32, 32), 1000  # latents of 256 x 256 images, and ImageNet's labels: the paper's setting


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What to run.

    Attributes:
        model: preset and what differs from it, as in a run's settings.
        batch: images a step over all ranks.
        dtype: of the arithmetic.
        strategy: how the ranks share the work.
        warmup: steps before the clock, at least 2: the first touches memory, the second uses it again.
        steps: on the clock.
        seed: of weights and batches.
    """

    model: Mapping[str, Any] = field(default_factory=lambda: {"preset": "DiT-S/2"})
    batch: int = 8
    dtype: str = "fp32"
    strategy: training.StrategyName = "cftp"
    warmup: int = 2
    steps: int = 3
    seed: int = 0


@dataclass(frozen=True)
class _Images:
    x: Tensor
    y: Tensor
    t: Tensor
    noise: Tensor


class _RandomSource:
    """Batches of normal numbers that follow from seed and step: the same whatever ranks share them."""

    def __init__(self, *, batch: int, seed: int) -> None:
        self._batch, self._seed = batch, seed
        self._num_steps = len(Schedule.linear())

    def batch(self, step: int, part: slice) -> _Images:
        """Images `part` of the batch of a step."""
        draws = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        size = (self._batch, *SHAPE)
        x, noise = torch.randn(size, generator=draws), torch.randn(size, generator=draws)
        y = torch.randint(NUM_CLASSES, (self._batch,), generator=draws)
        t = torch.randint(self._num_steps, (self._batch,), generator=draws)
        return _Images(x[part], y[part], t[part], noise[part])


def rehearse(settings: Rehearsal, group: Group, *, warm: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Makes the steps and tells what they took.

    Args:
        settings: what to run.
        group: the connected ranks, each placed on its cores already.
        warm: called on rank 0 between warm-up and clock, while all ranks wait.

    Returns:
        Ready for JSON, the same on every rank: `seconds` of each step on the clock, of the slowest rank; `losses` of all
        steps; for every rank, `peak_rss_bytes` and `sent` (bytes and calls of one step, None where nobody counts).

    Raises:
        UserError: fewer than 2 steps of warm-up or 1 on the clock, ranks that cannot share the work.
    """
    if settings.warmup < 2 or settings.steps < 1:
        got = f"{settings.warmup} and {settings.steps}"
        raise problem("steps of warm-up and on the clock", got=got, expected="at least 2 and 1", remedy="ask for more")
    trainer = _trainer(settings, group)
    losses = [trainer.step(number)["loss"] for number in range(1, settings.warmup + 1)]
    group.barrier()
    if group.rank == 0:
        warm()
    group.barrier()
    seconds, before = [], traffic.sent()
    for number in range(settings.warmup + 1, settings.warmup + settings.steps + 1):
        begun = time.perf_counter()
        losses.append(trainer.step(number)["loss"])
        seconds.append(time.perf_counter() - begun)
    sent = asdict(traffic.sent().since(before))
    own = {"sent": {name: None if value is None else value / settings.steps for name, value in sent.items()}}
    ranks = group.gather_objects(own | {"seconds": seconds, "peak_rss_bytes": peak_rss_bytes()})
    return {
        "settings": asdict(settings),
        "ranks": group.size,
        "threads": torch.get_num_threads(),
        "seconds": [max(times) for times in zip(*(rank.pop("seconds") for rank in ranks), strict=True)],
        "losses": losses,
        "each_rank": ranks,
    }


def _trainer(settings: Rehearsal, group: Group) -> Trainer:
    """The rooms in the order of `compose.py`, without inputs and store."""
    run = training.Run.model_validate(
        {"dataset": "random", "model": settings.model, "global_batch": settings.batch, "dtype": settings.dtype}
    )
    layout = layout_on(group, settings.strategy)
    model = fresh_model(run, shape=SHAPE, num_classes=NUM_CLASSES, seed=settings.seed)
    strategy = Strategy(AutoMem(model, recompute=run.recompute), layout)
    state = state_of(model, run, strategy)
    source = _RandomSource(batch=settings.batch, seed=settings.seed)
    trainer = Trainer(run=run, source=source, strategy=strategy, optimizer=state.optimizer, ema=state.ema, group=group)
    trainer.settle()
    return trainer
