"""Short training runs that measure the costs of arrangements on this node, and timed runs of the best plans.

A rehearsal trains on random latents with micro-batches of two sizes, so that one process measures the time of a micro-batch, its
part per image, and memory with both sizes. All rehearsals exist at the same time and step in turns, because machines change
their speed. Recomputation and sharding are measured for their memory only: their time follows from the forward pass and the
update. The blocks of a network are equal: large networks are rehearsed with few blocks, and costs are multiplied by the ratio
of operations and parameters (`fitting`).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from dithc.bench.plan import fitting
from dithc.bench.plan.plan_text import TIME_OVER
from dithc.bench.training import TrainingVariant
from dithc.bench.training.turns import TurnRun, run_in_turns
from dithc.config import training
from dithc.core.units import GIB
from dithc.engine.cost import estimates, memory, plans
from dithc.engine.hardware import Machine
from dithc.engine.numa import available_bytes

START_SECONDS = 6.0  # of the ranks of a rehearsal
WARMUP = 2
MIN_CYCLES = 3  # steps of each size that the time must allow, with warm-up
EFFICIENCY = 0.5  # of training with warm-up, relative to a large product
ALLOCATION_BANDWIDTH = 0.5e9  # bytes of state per second
MIN_IMAGES, MAX_IMAGES = 2, 4  # of the larger micro-batch; more rounds are better than more images
RECOMPUTED_IMAGES = 4  # of the larger micro-batch with recomputation, at least
CLOSE, MAX_TIMED = 1.15, 3  # plans within this factor of the best prediction are timed, up to this number
MIN_TIMED = 2  # steps of a plan that the time must allow
TIMED_SHARE = 0.4  # of the time limit, for the best plans
TIMED_WEIGHT = 0.25  # of the 2 or 3 timed steps of a plan on one node, beside the rehearsals of more steps
MAX_RANKS = 8
Item = TypeVar("Item")


@dataclass(frozen=True)
class Node:
    """Cores, dies and clusters of the node that measures, its free memory, launcher of ranks, and rate of fp32 products."""

    cores: int
    dies: int
    clusters: int
    memory_bytes: float
    launcher: str = "mpiexec"
    flops: float = 1e11

    @classmethod
    def of(
        cls, machine: Machine, *, launcher: str = "none", memory_bytes: float | None = None, cores: int | None = None
    ) -> "Node":
        """Return this node; `memory_bytes` and `cores` limit what is visible here."""
        visible = machine.visible_cores
        num_cores = min(len(visible), cores or len(visible))
        kinds = [{getattr(core, name) for core in visible} for name in ("die", "cluster")]
        dies, clusters = (min(num_cores, max(1, len(kind))) for kind in kinds)
        free = available_bytes() or machine.memory_bytes
        limit = float(free) if memory_bytes is None else min(memory_bytes, free)
        launcher = launcher if launcher != "none" else "mpiexec"
        return cls(num_cores, dies, clusters, limit, launcher, _product_flops() * num_cores / len(visible))

    def tensor_ranks(self, strategy: str, ranks: int) -> int:
        """Return the number of ranks that share the layers."""
        return max(1, ranks // self.dies) if strategy == "dp+tp" else 1

    def launches(self) -> list[list[plans.Arrangement]]:
        """Return the arrangements to measure by launch, most important first, all of a launch with the same ranks.

        One rank per die, and one per core cluster; on dies of one cluster, 2 and 4 ranks per die. Recomputation is measured
        once, because its memory is a ratio for all others.
        """
        many = [self.clusters] if self.clusters > self.dies else [2 * self.dies, 4 * self.dies]
        counts = [count for count in many if count <= min(self.cores, MAX_RANKS * self.dies)]
        found: list[list[plans.Arrangement]] = []
        ranks: list[tuple[training.StrategyName, int]] = [("cftp", self.dies), *(("dp", count) for count in counts)]
        for strategy, count in ranks:
            sharded: list[plans.Arrangement] = [(strategy, count, "zero1", "none")] * (count > 1)
            recomputing: list[plans.Arrangement] = [(strategy, count, "none", "block")] * (not found)
            found.append([(strategy, count, "none", "none"), *sharded, *recomputing])
        return found + [[("dp+tp", count, "none", "none")] for count in counts[:1]]


@dataclass(kw_only=True)
class Rehearsals:
    """Measurements of a task on a node within a time limit.

    Attributes:
        folder: folder that all nodes of a timed plan can read.
        skipped: arrangements without a measurement, with reasons.
        correction: typical ratio of timed plans to their predictions.
    """

    task: plans.TrainingTask
    node: Node
    shape: tuple[int, int, int]
    seconds: float = 110.0
    folder: Path = Path()
    correction: float = 1.0

    def __post_init__(self) -> None:
        self.costs: dict[plans.Arrangement, plans.RankCosts] = {}
        self.skipped: dict[plans.Arrangement, str] = {}
        self._last = time.monotonic() + self.seconds
        self._end = self._last - TIMED_SHARE * self.seconds
        self.short_task = fitting.shortened(self.task)

    def measure(self) -> dict[plans.Arrangement, plans.RankCosts]:
        """Measure all arrangements that fit into memory and time."""
        launches = self.node.launches()
        while (images := self._images(launches)) < MIN_IMAGES and len(launches) > 1:
            self.skipped |= dict.fromkeys(launches.pop(), TIME_OVER)
        wanted = []
        for names in launches:
            size = min(max(MIN_IMAGES, images), _power_of_two(self._share(names[0])))
            possible = [name for name in names if not self._reason_against(name, images=size)]
            if possible:
                wanted.append((possible, self._sizes(possible[0], sorted({1, size}))))
        for group, until in self._groups(wanted, lambda one: self._bytes(one[0][0], one[1][-1]), until=self._end):
            self._measure(group, until=until)
        costs = fitting.with_common_images(self.costs, self.short_task, self.node.tensor_ranks)
        self.costs = fitting.scaled(costs, self.short_task, self.task)
        return self.costs

    def _measure(self, group: Sequence[tuple[list[plans.Arrangement], list[int]]], *, until: float) -> None:
        """Measure launches at the same time."""
        runs = []
        for names, sizes in group:
            strategy, ranks, *_ = names[0]
            batch = ranks // self.node.tensor_ranks(strategy, ranks) * sum(sizes)
            sequence = [
                {"recompute": name[3], "sharding": name[2], "micro_batches": self._sizes(name, sizes), "steps": 0}
                for name in names
            ]
            runs.append(self._run(strategy, ranks, batch, sequence, task=self.short_task, cycle=len(sizes)))
        results = run_in_turns(runs, until=until, label="rehearsals")
        for (names, sizes), result in zip(group, results, strict=True):
            if result.status != "ok":
                reason = f"{result.status}: {result.reason.rpartition(' | ')[2]}"
                self.skipped |= dict.fromkeys(names, TIME_OVER if result.status == "stopped" else reason)
                continue
            sequence = result.result["sequence"]
            tensor_ranks = self.node.tensor_ranks(*names[0][:2])
            times = fitting.time_costs(sequence[0], names[0], sizes=sizes, tensor_ranks=tensor_ranks)
            for name, one in zip(names, sequence, strict=True):
                self.costs[name] = fitting.with_memory(
                    fitting.derived(times, name),
                    one,
                    self.short_task,
                    name,
                    sizes=self._sizes(name, sizes),
                    tensor_ranks=tensor_ranks,
                )

    def _sizes(self, name: plans.Arrangement, sizes: list[int]) -> list[int]:
        """Return the sizes of micro-batches: recomputation keeps little memory of an image, which requires a larger one."""
        largest = min(self._share(name), RECOMPUTED_IMAGES) if name[3] == "block" else 1
        return sorted({1, max(sizes[-1], largest)})

    def _reason_against(self, name: plans.Arrangement, *, images: int) -> bool:
        """Record and return whether an arrangement cannot be measured."""
        strategy, ranks, *_ = name
        if ranks > self.task.run.global_batch_size * self.node.tensor_ranks(strategy, ranks):
            self.skipped[name] = f"{ranks} ranks for {self.task.run.global_batch_size} images"
        elif self.task.run.model.shape[2] % (shared := self.node.tensor_ranks(strategy, ranks)):
            self.skipped[name] = f"{self.task.run.model.shape[2]} attention heads for {shared} ranks"
        elif (needed := self._bytes(name, images)) > self.node.memory_bytes:
            free = self.node.memory_bytes / GIB
            self.skipped[name] = f"needs {needed / GIB:.2f} GiB, {free:.2f} GiB are free"
        return name in self.skipped

    def _bytes(self, name: plans.Arrangement, images: int) -> float:
        """Return the expected memory of the ranks of a rehearsal."""
        task = self.short_task
        return name[1] * memory.rank_memory(task.run, images=images, tokens=task.tokens, recompute=name[3]).total

    def _share(self, name: plans.Arrangement) -> int:
        """Return the largest number of images of a rank in a step."""
        strategy, ranks, *_ = name
        return -(-self.task.run.global_batch_size * self.node.tensor_ranks(strategy, ranks) // ranks)

    def _images(self, launches: Sequence[Sequence[plans.Arrangement]]) -> int:
        """Return the images of the larger micro-batch, so that all rehearsals end in time; 0 without time."""
        image_seconds = self.short_task.workload.flops / (EFFICIENCY * self.node.flops)
        data_ranks = sum(ranks // self.node.tensor_ranks(strategy, ranks) for ((strategy, ranks, *_), *_) in launches)
        free = self._end - time.monotonic() - START_SECONDS * len(launches)
        pairs = int(free / (MIN_CYCLES * 2 * data_ranks * image_seconds)) - 1  # a step has two micro-batches
        return min(MAX_IMAGES, _power_of_two(pairs)) if pairs >= 1 else 0

    def _groups(
        self, items: Sequence[Item], bytes_of: Callable[[Item], float], *, until: float
    ) -> Iterator[tuple[list[Item], float]]:
        """Yield items whose memory fits together, with the time by which they have to end."""
        groups: list[list[Item]] = []
        free = 0.0
        for item in items:
            needed = bytes_of(item)
            if not groups or needed > free:
                groups.append([])
                free = self.node.memory_bytes
            groups[-1].append(item)
            free -= needed
        for number, group in enumerate(groups):
            left = sum(map(len, groups[number:]))
            yield group, time.monotonic() + (until - time.monotonic()) * len(group) / left

    def time_plans(self, table: estimates.PlanTable) -> estimates.PlanTable:
        """Time the best plans of different arrangements, as far as the time is sufficient; return the table in their order."""
        found = list(table.estimates)
        usual = [(index, one) for index, one in enumerate(found) if one.plan.has_usual_sums]
        firsts = {one.arrangement: index for index, one in reversed(usual)}
        close = [index for index in sorted(firsts.values()) if found[index].predicted <= CLOSE * found[0].predicted]
        seconds, excess = dict[int, float](), dict[int, float]()  # of a step; bytes of a rank beyond its prediction
        of_several = table.best is not None and table.best.plan.nodes > 1  # whose jobs run one at a time
        left, timed = self._last - time.monotonic() - START_SECONDS * (not of_several), list[int]()
        for index in close[:MAX_TIMED]:
            state = found[index].ranks_per_node * found[index].memory.state
            left -= (
                state / ALLOCATION_BANDWIDTH
                + (WARMUP + MIN_TIMED) * found[index].predicted
                + START_SECONDS * of_several
            )
            timed += [index] * (left > 0)
        for group, until in self._groups(
            timed, lambda index: math.inf if of_several else found[index].node_bytes, until=self._last
        ):
            runs = [self._timed_run(found[index].plan, table.task) for index in group]
            results = run_in_turns(runs, until=until, label="best plans", parent=self.folder if of_several else None)
            for index, result in zip(group, results, strict=True):
                if result.status == "ok":
                    weight = 1.0 if of_several else TIMED_WEIGHT
                    seconds[index] = found[index].predicted ** (1 - weight) * median(result.seconds) ** weight
                    per_node = found[index].ranks_per_node
                    peaks = [rank["peaks"][-1] for rank in result.result["each_rank"][:per_node]]
                    parts = found[index].memory
                    excess[index] = fitting.node_bytes(peaks) / len(peaks) + parts.snapshot - parts.total
        ratios = [value / found[index].predicted for index, value in seconds.items()]
        self.correction = median(ratios or [1.0])
        found = [replace(one, correction=self.correction) for one in found]
        for index, value in seconds.items():
            known, parts = found[index], found[index].memory
            parts = replace(parts, process=parts.process + excess[index])
            factor = value * known.correction / known.predicted  # so that the parts add up to the seconds
            changes = {name: factor * getattr(known, name) for name in estimates.PARTS}
            changes |= {"correction": 1.0, "measured_seconds": value, "memory": parts, "source": "timed"}
            found[index] = replace(known, **changes)
        return replace(table, estimates=estimates.ordered(found))

    def _timed_run(self, plan: plans.TrainingPlan, task: plans.TrainingTask) -> TurnRun:
        changes: dict[str, Any] = {"recompute": plan.recompute, "sharding": plan.sharding}
        changes |= {"micro_batches": [plan.micro_batch_size], "steps": 0}
        batch = task.run.global_batch_size
        return self._run(plan.strategy, plan.ranks, batch, [changes], task=task, nodes=plan.nodes)

    def _run(
        self,
        strategy: str,
        ranks: int,
        batch: int,
        sequence: Sequence[dict[str, Any]],
        *,
        task: plans.TrainingTask,
        cycle: int = 1,
        nodes: int = 1,
    ) -> TurnRun:
        run, cpus = task.run, max(1, self.node.cores * nodes // ranks)
        given = {
            "run_settings": {name: getattr(run, name) for name in ("max_grad_norm", "weight_decay")}
            | {name: getattr(run, name).model_dump(mode="json") for name in ("optimizer", "objective", "ema")},
            "model": run.model.model_dump(mode="json", exclude={"gaussian_prediction"}),
            "shape": self.shape,
            "num_classes": self.task.labels,
        }
        words = ["--batch", str(batch), "--dtype", run.dtype, "--warmup", str(WARMUP), "--automem", "off"]
        placed: dict[str, Any] = {"ranks": ranks, "cpus": cpus, "nodes": nodes, "launcher": self.node.launcher}
        variant = TrainingVariant(name=f"{ranks} {strategy}", strategy=strategy, **placed)
        return TurnRun(variant=variant, options=words, settings=[given | one for one in sequence], cycle=cycle)


def _product_flops() -> float:
    """Return the rate of a large fp32 product on all visible cores, the best of three."""
    size, seconds = 1536, []
    matrix = np.ones((size, size), dtype=np.float32)
    for _ in range(3):
        start = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to a positive number."""
    return 1 << (number.bit_length() - 1)
