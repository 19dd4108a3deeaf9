"""Short training runs that measure the costs of arrangements on this node, and timed runs of the best plans.

A rehearsal trains on random latents with micro-batches of two sizes in each step, so that one process measures the time of a
micro-batch, its part per image, and memory with both sizes. The blocks of a network are equal: large networks are rehearsed with
few blocks, and costs are multiplied by the ratio of operations and parameters (`fitting`).
"""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from dithc.bench.plan.fitting import fit, node_bytes, scaled, shortened, with_common_calls, with_common_images
from dithc.bench.plan.plan_text import TIME_OVER
from dithc.bench.training import TrainingResult, TrainingVariant, run_training
from dithc.config import training
from dithc.core.logging import progress
from dithc.core.units import GIB
from dithc.engine.cost import estimates, memory, plans
from dithc.engine.hardware import Machine
from dithc.engine.numa import available_bytes

START_SECONDS = 6.0  # of the ranks of a rehearsal
WARMUP, STEPS = 2, 2
STEPS_SECONDS, MAX_STEPS = 2.0, 20  # short steps are repeated, because single ones are disturbed
ASSUMED_FLOPS = 50e9  # of a core
FIRST_IMAGES, MAX_IMAGES = 4, 8  # of the larger micro-batch
CLOSE, MAX_TIMED = 1.15, 3  # plans within this factor of the best prediction are timed, up to this number
TIMED_SHARE = 0.4  # of the time limit, for the best plans
MAX_RANKS = 8


@dataclass(frozen=True)
class Node:
    """Cores, dies and clusters of the node that measures, its free memory, and its launcher of ranks."""

    cores: int
    dies: int
    clusters: int
    memory_bytes: float
    launcher: str = "mpiexec"

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
        return cls(num_cores, dies, clusters, limit, launcher if launcher != "none" else "mpiexec")

    def tensor_ranks(self, strategy: str, ranks: int) -> int:
        """Return the number of ranks that share the layers."""
        return max(1, ranks // self.dies) if strategy == "dp+tp" else 1

    def launches(self) -> list[list[plans.Arrangement]]:
        """Return the arrangements to measure by launch, most important first, all of a launch with the same ranks.

        One rank per die, and one per core cluster; on dies of one cluster, 2 and 4 ranks per die.
        """
        many = [self.clusters] if self.clusters > self.dies else [2 * self.dies, 4 * self.dies]
        counts = [count for count in many if count <= min(self.cores, MAX_RANKS * self.dies)]
        shardings: list[training.Sharding] = ["none", "zero1"]
        found: list[list[plans.Arrangement]] = []
        ranks: list[tuple[training.StrategyName, int]] = [("cftp", self.dies), *(("dp", count) for count in counts)]
        for strategy, count in ranks:
            sharded: list[plans.Arrangement] = [(strategy, count, one, "none") for one in shardings[: 2 - (count == 1)]]
            found.append([*sharded, (strategy, count, "none", "block")])
        return found + [[("dp+tp", count, "none", "none"), ("dp+tp", count, "none", "block")] for count in counts[:1]]


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
        self._first_image_seconds = self._allocation_seconds = 0.0
        self.short_task = shortened(self.task)

    def measure(self) -> dict[plans.Arrangement, plans.RankCosts]:
        """Measure all arrangements that fit into memory and time."""
        launches = self.node.launches()
        with progress(total=len(launches), label="rehearsals", unit="run") as bar:
            for number, names in enumerate(launches):
                self._measure(names, left=sum(map(len, launches[number:])), launches=len(launches) - number)
                bar.update(1, now=f"{names[0][1]} x {names[0][0]}")
        self.costs = with_common_calls(self.costs)
        self.costs = scaled(
            with_common_images(self.costs, self.short_task, self.node.tensor_ranks), self.short_task, self.task
        )
        return self.costs

    def _measure(self, names: Sequence[plans.Arrangement], *, left: int, launches: int) -> None:
        strategy, ranks, *_ = names[0]
        tensor_ranks = self.node.tensor_ranks(strategy, ranks)
        share = -(-self.task.run.global_batch_size * tensor_ranks // ranks)
        images = self._images(ranks // tensor_ranks, share, left=left, launches=launches)
        fitting = [name for name in names if not self._reason_against(name, images=images)]
        if not fitting:
            return
        sizes = sorted({1, images})
        batch = ranks // tensor_ranks * (images + 1)
        sequence = [{"recompute": name[3], "sharding": name[2], "micro_batches": sizes} for name in fitting]
        start = time.monotonic()
        image_seconds = self._first_image_seconds or self.task.workload.flops / ASSUMED_FLOPS / self.node.cores
        steps = num_steps(batch * image_seconds / self.node.dies)
        result = self._run(strategy, ranks, batch, sequence, task=self.short_task, steps=steps)
        if result.status != "ok":
            self.skipped |= dict.fromkeys(fitting, f"{result.status}: {result.reason.rpartition(' | ')[2]}")
            return
        for name, one in zip(fitting, result.result["sequence"], strict=True):
            self.costs[name] = fit(one, self.short_task, name, sizes=sizes, tensor_ranks=tensor_ranks)
        seconds = self.costs[fitting[0]].seconds(images) / images
        self._first_image_seconds = self._first_image_seconds or seconds
        stepping = (WARMUP / steps + 1) * sum(sum(one["seconds"]) for one in result.result["sequence"])
        allocated = len(fitting) * ranks * memory.rank_memory(self.short_task.run).state
        started = time.monotonic() - start - START_SECONDS - stepping
        self._allocation_seconds = max(self._allocation_seconds, started / allocated)

    def _reason_against(self, name: plans.Arrangement, *, images: int) -> bool:
        """Record and return whether an arrangement cannot be measured."""
        strategy, ranks, _, recompute = name
        needed = memory.rank_memory(
            self.short_task.run, images=max(1, images), tokens=self.task.tokens, recompute=recompute
        )
        if ranks > self.task.run.global_batch_size * self.node.tensor_ranks(strategy, ranks):
            self.skipped[name] = f"{ranks} ranks for {self.task.run.global_batch_size} images"
        elif self.task.run.model.shape[2] % (shared := self.node.tensor_ranks(strategy, ranks)):
            self.skipped[name] = f"{self.task.run.model.shape[2]} attention heads for {shared} ranks"
        elif ranks * needed.total > self.node.memory_bytes:
            free = self.node.memory_bytes / GIB
            self.skipped[name] = f"needs {ranks * needed.total / GIB:.1f} GiB, {free:.1f} GiB are free"
        elif images < 1:
            self.skipped[name] = TIME_OVER
        return name in self.skipped

    def _images(self, data_ranks: int, share: int, *, left: int, launches: int) -> int:
        """Return the images of the larger micro-batch, so that all rehearsals end in time; 0 without time."""
        if not self._first_image_seconds:
            return min(FIRST_IMAGES, share)
        image_seconds = self._first_image_seconds * data_ranks / self.node.dies
        free = (self._end - time.monotonic() - launches * START_SECONDS) / left
        largest = min(MAX_IMAGES, share, int(free / (WARMUP + STEPS) / image_seconds) - 1)
        return 1 << (largest.bit_length() - 1) if largest >= 1 else int(free > 0)

    def time_plans(self, table: estimates.PlanTable) -> estimates.PlanTable:
        """Time the best plans of different arrangements, as far as the time is sufficient; return the table in their order."""
        found = list(table.estimates)
        usual = [(index, one) for index, one in enumerate(found) if one.plan.has_usual_sums]
        firsts = {one.arrangement: index for index, one in reversed(usual)}
        close = [index for index in sorted(firsts.values()) if found[index].predicted <= CLOSE * found[0].predicted]
        queue, seconds, rank_bytes = close[:MAX_TIMED], dict[int, list[float]](), dict[int, float]()
        repeats = 2 * (len(queue) > 1)  # the two best again, because the speed of a machine drifts
        with progress(total=len(queue) + repeats, label="best plans", unit="run") as bar:
            while queue:
                index = queue.pop(0)
                estimate = found[index]
                state = estimate.ranks_per_node * estimate.memory.state
                steps = num_steps(estimate.predicted)
                needed = START_SECONDS + state * self._allocation_seconds + (WARMUP + steps) * estimate.predicted
                if time.monotonic() + needed > self._last:
                    break
                plan = estimate.plan
                changes: dict[str, Any] = {"recompute": plan.recompute, "sharding": plan.sharding}
                changes |= {"micro_batches": [plan.micro_batch_size]}
                batch = table.task.run.global_batch_size
                result = self._run(
                    plan.strategy, plan.ranks, batch, [changes], task=table.task, steps=steps, nodes=plan.nodes
                )
                if result.status == "ok":
                    seconds.setdefault(index, []).extend(result.seconds)
                    peaks = [rank["peaks"][-1] for rank in result.result["each_rank"][: plan.ranks_per_node]]
                    rank_bytes[index] = node_bytes(peaks) / len(peaks)
                bar.update(1, now=str(plan))
                if not queue and repeats:
                    queue, repeats = sorted(seconds, key=lambda one: -median(seconds[one]))[-2:], 0
        ratios = [median(times) / found[index].predicted for index, times in seconds.items()]
        self.correction = median(ratios or [1.0])
        found = [replace(one, correction=self.correction) for one in found]
        for index, times in seconds.items():
            known, parts = found[index], found[index].memory
            parts = replace(parts, process=parts.process + rank_bytes[index] + parts.snapshot - parts.total)
            factor = median(times) * known.correction / known.predicted  # so that the parts add up to the measured time
            changes = {name: factor * getattr(known, name) for name in estimates.PARTS}
            changes |= {"correction": 1.0, "measured_seconds": median(times), "memory": parts, "source": "timed"}
            found[index] = replace(known, **changes)
        return replace(table, estimates=estimates.ordered(found))

    def _run(
        self,
        strategy: str,
        ranks: int,
        batch: int,
        sequence: Sequence[Mapping[str, Any]],
        *,
        task: plans.TrainingTask,
        steps: int = STEPS,
        nodes: int = 1,
    ) -> TrainingResult:
        run, cpus = task.run, max(1, self.node.cores * nodes // ranks)
        given = {
            "run_settings": {name: getattr(run, name) for name in ("max_grad_norm", "weight_decay")}
            | {name: getattr(run, name).model_dump(mode="json") for name in ("optimizer", "objective", "ema")},
            "model": run.model.model_dump(mode="json", exclude={"gaussian_prediction"}),
            "shape": self.shape,
            "num_classes": self.task.labels,
        }
        parent = self.folder if nodes > 1 else None
        with tempfile.TemporaryDirectory(prefix=".dithc-plan-", dir=parent) as folder:
            file = Path(folder) / "settings.json"
            file.write_text(json.dumps([given | dict(one) for one in sequence]))
            words = ["--settings", str(file), "--batch", str(batch), "--dtype", run.dtype]
            words += ["--strategy", strategy, "--warmup", str(WARMUP), "--steps", str(steps), "--automem", "off"]
            name = f"{ranks} {strategy}"
            placed: dict[str, Any] = {"ranks": ranks, "cpus": cpus, "nodes": nodes, "launcher": self.node.launcher}
            return run_training(TrainingVariant(name=name, strategy=strategy, **placed), words, parent=parent)


def num_steps(seconds: float) -> int:
    """Return the number of steps to measure, for the expected seconds of a step."""
    return max(STEPS, min(MAX_STEPS, int(STEPS_SECONDS / seconds)))
