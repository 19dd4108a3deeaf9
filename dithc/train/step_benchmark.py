"""Training steps on random latents, complete except for files, for measurements.

N images of a batch, C channels.
"""

import gc
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dithc.config import MachineConfig, training
from dithc.core.logging import user_error
from dithc.core.processes import Turns
from dithc.diffusion import Objective
from dithc.engine import hcops
from dithc.engine.comm import Group, traffic
from dithc.engine.memory import output_pool
from dithc.engine.numa import PeakMemory, peak_rss_bytes, reset_peak_rss
from dithc.latents import Batch
from dithc.train.memory_tiers import MEMORY, TrainingMemory
from dithc.train.pipeline import init_model, trainer_of
from dithc.train.step import Trainer
from dithc.train.strategies import Strategy, make_rank_grid

SHAPE, NUM_CLASSES = (4, 32, 32), 1000  # latents of 256 x 256 images, and ImageNet's labels: the paper's setting
LARGE_PRIME = 1_000_003  # larger than any batch
Operators = Literal["default", "products", "torch"]
# Matrix products of linear layers with their fused ends, and the operators of the ends' gradients.
PRODUCTS = ("linear", "linear_gelu", "linear_gate_residual", "mlp", "gelu", "gate_residual")
# Keys of a step's metrics.
EXCHANGE = ("exposed_seconds", "communication_seconds", "overlap_fraction", "comm_bytes", "stage_seconds")


@dataclass(frozen=True, kw_only=True)
class StepBenchmark:
    """Settings of a rehearsal, named as in the configuration.

    Operators: default, those of training; torch, PyTorch for all operators, including AdamW and average; products,
    PyTorch except for matrix products of linear layers with fused bias, GELU or gate.
    """

    model: Mapping[str, Any] = field(default_factory=lambda: {"preset": "DiT-S/2"})  # preset and overrides
    batch: int = 8  # images per step over all ranks
    dtype: str = "fp32"
    strategy: training.StrategyName = "cftp"
    sharding: training.Sharding = "none"
    pipeline_stages: int = 1
    gradients: training.GradientMode = "overlapped"
    operators: Operators = "default"
    recompute: Literal["none", "block"] = "none"
    memory: training.MemoryConfig = field(default_factory=training.MemoryConfig)
    warmup: int = 2  # untimed steps; 2 for valid times, because memory is first touched, then reused
    steps: int = 3  # timed steps; 0 to measure only the memory of `micro_batches`
    seed: int = 0
    run_settings: Mapping[str, Any] = field(default_factory=dict)  # further settings of a run, such as `optimizer`
    shape: tuple[int, int, int] = SHAPE
    num_classes: int = NUM_CLASSES
    micro_batches: tuple[int, ...] = ()  # sizes that alternate from step to step; none for the share of a rank
    turns: str = ""  # file of allowed steps (`Turns`), instead of `steps`
    pairs: int = 0  # further timed steps, each with one without communication, so that weights differ between ranks


class _RandomSource:
    """Source of random normal images, determined by seed, step and index in the batch, independent of ranks."""

    def __init__(self, settings: StepBenchmark) -> None:
        self._seed, self._shape, self._num_classes = settings.seed, settings.shape, settings.num_classes
        self._times = Objective.of(_run_of(settings).objective).times

    def batch(self, step: int, part: slice) -> Batch:
        images = [self._image(step, index) for index in range(part.start, part.stop)]
        return Batch(*(torch.stack(tensors) for tensors in zip(*images, strict=True)))

    def _image(self, step: int, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        draws = torch.Generator().manual_seed((self._seed * LARGE_PRIME + step) * LARGE_PRIME + index)
        y = torch.randint(self._num_classes, (), generator=draws)
        (t,) = torch.from_numpy(self._times(torch.rand(1, generator=draws, dtype=torch.float64).numpy()))
        return torch.randn(self._shape, generator=draws), y, t, torch.randn(self._shape, generator=draws)


def benchmark_steps(
    settings: StepBenchmark, group: Group, *, warm: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Run the steps and return the measurements.

    Args:
        group: connected ranks, already placed on cores.
        warm: called on rank 0 between warm-up and timing, while all ranks wait.

    Returns:
        JSON-ready, equal on all ranks: `seconds` per timed step (slowest rank); `losses` and `grad_norms` of all steps
        except pairs; per rank `peak_rss_bytes`, `before_bytes` (peak before the model), `page_faults` per step,
        `operators` (kernels), `sent` (bytes and calls per step, or None), exchange costs, `phases` (micro-batch, share of a
        rank, names and seconds in order, by timed step), `peaks` (memory before the first step, and after each warm-up
        step), and `memory` if managed (tiers, trace, plan, metrics per step); `pairs`, if requested: seconds `together` and
        `alone` (slowest rank), and `exposed_seconds`.

    Raises:
        UserError: no step of warm-up or timing, ranks that cannot share the work, or pairs with ranks that share
            layers.
    """
    if settings.warmup < 1 or settings.steps < (not settings.micro_batches):
        got = f"{settings.warmup} and {settings.steps}"
        raise user_error(
            "warm-up steps and timed steps", got=got, expected="at least 1 of each", fix="raise both numbers"
        )
    before_bytes = peak_rss_bytes()
    _choose_operators(settings.operators)
    trainer = _trainer(settings, group)
    rows, peaks = _warm_up(trainer, settings)
    group.barrier()
    if group.rank == 0:
        warm()
    group.barrier()
    seconds, phases, sent_before, faults = [], [], traffic.sent(), _page_faults()
    for number in _numbers(settings, group):
        images = _set_micro_batch(trainer, settings, number)
        start = time.perf_counter()
        with _phases(trainer) as timed_phases:
            rows.append(trainer.step(number))
        seconds.append(time.perf_counter() - start)
        phases.append({"images": images, "share": trainer.shares[0], "seconds": timed_phases})
    sent = asdict(traffic.sent().since(sent_before))
    local: dict[str, Any] = {
        "sent": {name: None if value is None else value / max(1, len(seconds)) for name, value in sent.items()}
    }
    timed = rows[settings.warmup :]
    local["page_faults"] = (_page_faults() - faults) / max(1, len(seconds))
    local["exchange"] = {name: [row[name] for row in timed] for name in EXCHANGE if all(name in row for row in timed)}
    local |= _managed(trainer.memory, timed)
    peak = peak_rss_bytes()
    pairs = _pairs(trainer, settings, group) if settings.pairs else None
    trainer.memory.close()
    local |= {"before_bytes": before_bytes, "peak_rss_bytes": peak, "operators": hcops.describe_kernels()}
    local |= {"phases": phases, "peaks": peaks}
    ranks = group.gather_objects(local | {"seconds": seconds, "pairs": pairs})
    paired = [rank.pop("pairs") for rank in ranks]
    return {
        "settings": asdict(settings) | {"memory": settings.memory.model_dump()},
        "ranks": group.size,
        "threads": torch.get_num_threads(),
        "seconds": _slowest(rank.pop("seconds") for rank in ranks),
        "losses": [row["loss"] for row in rows],
        "grad_norms": [row["grad_norm"] for row in rows],
        "each_rank": ranks,
        "pairs": {name: _slowest(pair[name] for pair in paired) for name in paired[0]} if settings.pairs else None,
    }


def _numbers(settings: StepBenchmark, group: Group) -> Iterator[int]:
    """Yield the numbers of the timed steps: `steps`, or as many as the starting process allows in turns."""
    first = settings.warmup + 1
    if not settings.turns:
        yield from range(first, first + settings.steps)
        return
    for finished in count(1):  # the preparation is the first turn
        if not _has_turn(settings, group, finished):
            return
        yield first + finished - 1


def _has_turn(settings: StepBenchmark, group: Group, finished: int) -> bool:
    """Report finished turns, and wait for the next one; return False if there is none."""
    turns = Turns(Path(settings.turns))
    group.barrier()
    if group.rank == 0:
        turns.report(finished)
    is_next = turns.wait(finished)
    group.barrier()
    return is_next


def _warm_up(trainer: Trainer, settings: StepBenchmark) -> tuple[list[dict[str, float]], list[dict[str, int]]]:
    """Run the untimed steps; return their metrics, and the peak memory with each size of a micro-batch."""
    rows, peaks, shares = [], [{"images": 0, **asdict(PeakMemory.read())}], trainer.shares
    for number in range(1, settings.warmup + 1):
        images = _set_micro_batch(trainer, settings, number)
        if len(settings.micro_batches) > 1:  # a single micro-batch, because different sizes fragment memory
            trainer.divide([images] * len(shares))
            _release_memory()
        rows.append(trainer.step(number))
        peaks.append({"images": images, **asdict(PeakMemory.read())})
        trainer.divide(shares)
    if len(settings.micro_batches) > 1 and (settings.turns or settings.steps):
        _set_micro_batch(trainer, settings, 1)
        trainer.step(settings.warmup)  # the first step that adds gradients of two micro-batches allocates memory
    return rows, peaks


def _set_micro_batch(trainer: Trainer, settings: StepBenchmark, number: int) -> int:
    """Set and return the images of the micro-batches of a step; of several sizes, a step has two micro-batches."""
    if settings.micro_batches:
        images = settings.micro_batches[(number - 1) % len(settings.micro_batches)]
        trainer.run = trainer.run.updated(micro_batch_size=images)
        share = [2 * images] * len(trainer.shares)  # the first without the exchange of gradients, the second with it
        trainer.divide(share if len(settings.micro_batches) > 1 else trainer.shares)
    return trainer.run.micro_batch_size or max(trainer.shares)


@contextmanager
def _phases(trainer: Trainer) -> Iterator[list[tuple[str, float]]]:
    """Yield the phases of a step with their seconds, in order."""
    found: list[tuple[str, float]] = []

    @contextmanager
    def span(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        found.append((name, time.perf_counter() - start))

    default, trainer.span = trainer.span, span
    try:
        yield found
    finally:
        trainer.span = default


def benchmark_in_sequence(settings: Sequence[StepBenchmark], group: Group) -> list[dict[str, Any]]:
    """Run several measurements in one process, each from free memory; return their results as `benchmark_steps`.

    With turns, the first turn covers all work before the timed steps.
    """
    results = []
    if any(not _has_turn(one, group, 0) for one in settings if one.turns):
        return []
    for one in settings:
        _release_memory()
        results.append(benchmark_steps(one, group))
    return results


def _release_memory() -> None:
    """Return unused memory to the system, and start a new peak."""
    gc.collect()
    output_pool().trim()
    reset_peak_rss()


def _managed(memory: TrainingMemory, rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return `memory`: tiers with counters, trace, plan and costs per step; empty if unmanaged."""
    document = memory.document()
    if document is None or memory.tiers is None:
        return {}
    tiers = [
        document_tier | asdict(tier.counters())
        for document_tier, tier in zip(document["tiers"], memory.tiers, strict=True)
    ]
    return {"memory": document | {"tiers": tiers, "steps": {name: [row[name] for row in rows] for name in MEMORY}}}


def _choose_operators(operators: Operators) -> None:
    if operators == "default":
        return
    serving = hcops.describe_kernels()[0]["backend"]
    hcops.use("reference")
    if operators == "products":
        hcops.use(serving, ops=PRODUCTS)


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _slowest(ranks: Iterable[Sequence[float]]) -> list[float]:
    return [max(values) for values in zip(*ranks, strict=True)]


def _pairs(trainer: Trainer, settings: StepBenchmark, group: Group) -> dict[str, list[float]]:
    """Run steps together and alone, interleaved, with every second pair reversed to cancel drift."""
    local_trainer = _local_trainer(trainer, settings, group)
    first = settings.warmup + settings.steps + 1
    times: dict[str, list[float]] = {"together": [], "alone": [], "exposed_seconds": []}
    local_trainer.step(first)  # the first step allocates memory
    for pair in range(settings.pairs):
        for name in ("together", "alone") if pair % 2 == 0 else ("alone", "together"):
            group.barrier()
            start = time.perf_counter()
            row = (trainer if name == "together" else local_trainer).step(first + pair)
            times[name].append(time.perf_counter() - start)
            if name == "together":
                times["exposed_seconds"].append(row.get("exposed_seconds", 0.0))
    return times


def _local_trainer(trainer: Trainer, settings: StepBenchmark, group: Group) -> Trainer:
    layout = trainer.strategy.layout
    if (
        layout.tensor_size * layout.num_stages > 1
        or trainer.strategy.sharded_state is not None
        or settings.batch % layout.data_size
    ):
        got = f"{settings.strategy}, sharding {settings.sharding}, {settings.batch} images on {group.size} rank(s)"
        expected = "ranks with complete layers, unsharded state and equal shares of the batch"
        raise user_error(
            "steps without exchange", got=got, expected=expected, fix="set pairs to 0, or change the strategy"
        )
    single = Group()
    run = trainer.run.updated(global_batch_size=settings.batch // layout.data_size)
    state = replace(trainer.state, strategy=Strategy(trainer.strategy.module, make_rank_grid(single, "cftp")))
    return Trainer(run=run, source=_RandomSource(settings), state=state, group=single)


def _run_of(settings: StepBenchmark) -> training.RunConfig:
    return training.RunConfig.model_validate(
        {"dataset": "random", "model": settings.model, "global_batch_size": settings.batch, "dtype": settings.dtype}
        | {"activation_checkpointing": settings.recompute}
        | dict(settings.run_settings)
    )


def _trainer(settings: StepBenchmark, group: Group) -> Trainer:
    """Return the trainer of a rehearsal, composed as in a run without inputs and store."""
    run = _run_of(settings)
    if settings.micro_batches:
        run = run.updated(micro_batch_size=settings.micro_batches[0])
    machine = MachineConfig(
        strategy=settings.strategy,
        gradient_sync=settings.gradients,
        sharding=settings.sharding,
        pipeline_stages=settings.pipeline_stages,
        memory=settings.memory,
    )
    layout = make_rank_grid(group, settings.strategy, stages=machine.pipeline_stages)
    model = init_model(run, shape=settings.shape, num_classes=settings.num_classes, seed=settings.seed)
    memory = TrainingMemory(machine.training_memory, group=group)
    source = _RandomSource(settings)
    trainer = trainer_of(run, machine, group, source, model=model, layout=layout, memory=memory)
    memory.follow(trainer.state)
    return trainer
