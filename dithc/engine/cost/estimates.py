"""Predicted seconds of a step and memory of all plans of a training run, in order.

Legend: B images of the global batch, m images of a micro-batch, R data-parallel ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import get_args

from dithc.config import training
from dithc.core.units import GIB
from dithc.engine.cost.links import Collective
from dithc.engine.cost.memory import LAUNCHER_BYTES, MPI_BYTES, PROCESS_BYTES, WATCHDOG_BYTES, RankMemory, rank_memory
from dithc.engine.cost.plans import (
    Arrangement,
    PlanFacts,
    RankCosts,
    TrainingPlan,
    TrainingTask,
    candidates,
    data_ranks,
    rejection_reason,
    tensor_ranks,
)
from dithc.engine.cost.scenario import ComputeTime, ReductionMethod, Scenario
from dithc.engine.cost.shares import balanced_shares
from dithc.engine.cost.workload import ModelWorkload

RESOLUTION = 0.01  # of predicted seconds; plans within it are ordered by memory and micro-batch
MEMORY_RESOLUTION, MAX_MEMORY = 0.02, 1e15  # of the node's memory; limit if it is unknown
UNMEASURED_MARGIN = 0.05
PARTS = ("computing", "exposed", "stall", "saving")  # of the seconds of a step
SHARDINGS = get_args(training.Sharding)
MAX_NODES = 1 << 14
# Assumed bytes per second of a rank's copy for a checkpoint, and of its file.
COPY_BANDWIDTH, DISK_BANDWIDTH = 3e9, 0.2e9
SPILL_SPREAD = 0.3  # of plans with a file tier


@dataclass(frozen=True, kw_only=True)
class PlanEstimate:
    """Predicted seconds of a step by part, and memory of a rank.

    Attributes:
        stall: time for data in the file tier, beyond computing.
        spilled_bytes: bytes of a rank in the file tier.
        spread: relative width of the interval of seconds above and below.
        source: origin of the costs: measured, derived, described; timed if the plan itself was run.
        correction: typical ratio of timed plans to their predictions.
        measured_seconds: of the plan itself, if it was timed; on one node between its timed and its predicted seconds.
    """

    plan: TrainingPlan
    computing: float
    exposed: float
    saving: float
    memory: RankMemory
    ranks_per_node: int
    memory_limit: float
    spread: float
    source: str
    stall: float = 0.0
    spilled_bytes: float = 0.0
    correction: float = 1.0
    measured_seconds: float | None = None

    @property
    def arrangement(self) -> Arrangement:
        return self.plan.strategy, self.plan.ranks_per_node, self.plan.sharding, self.plan.recompute

    @property
    def predicted(self) -> float:
        """Predicted seconds of a step."""
        return (self.computing + self.exposed + self.stall + self.saving) * self.correction

    @property
    def seconds(self) -> float:
        """Seconds of a step: measured if the plan was timed, else predicted."""
        return self.predicted if self.measured_seconds is None else self.measured_seconds

    @property
    def interval(self) -> tuple[float, float]:
        return self.seconds / (1 + self.spread), self.seconds * (1 + self.spread)

    @property
    def launcher_bytes(self) -> float:
        return LAUNCHER_BYTES + self.ranks_per_node * WATCHDOG_BYTES if self.plan.ranks > 1 else 0.0

    @property
    def node_bytes(self) -> float:
        """Memory of the ranks of a node, their watchdogs and their launcher, without the file tier."""
        return self.ranks_per_node * (self.memory.total - self.spilled_bytes) + self.launcher_bytes

    @property
    def headroom(self) -> float:
        return self.memory_limit - self.node_bytes

    def is_like(self, best: "PlanEstimate") -> bool:
        """Return whether time and memory are equal within the resolutions."""
        more = abs(self.node_bytes - best.node_bytes)
        return abs(self.seconds / best.seconds - 1) <= RESOLUTION and more <= RESOLUTION * best.node_bytes

    def limit(self, best: "PlanEstimate") -> str:
        """Return why this plan is slower than the best one, or needs more memory."""
        parts = {name: self.correction * getattr(self, name) - best.correction * getattr(best, name) for name in PARTS}
        name = max(parts, key=lambda part: parts[part])
        if self is best or self.seconds <= best.seconds * (1 + RESOLUTION):
            more = (self.node_bytes - best.node_bytes) / GIB
            return "" if self is best else f"as fast; {abs(more):.2f} GiB {'more' if more > 0 else 'less'}"
        label = {"exposed": "exchange", "stall": "file tier"}.get(name, name)
        return f"{self.seconds / best.seconds - 1:+.0%}: {label} {parts[name]:+.3g} s"


@dataclass(frozen=True, kw_only=True)
class PlanTable:
    """Plans of a task, best first, and rejected plans with reasons."""

    task: TrainingTask
    facts: PlanFacts
    estimates: Sequence[PlanEstimate]
    rejected: Sequence[tuple[TrainingPlan, str]] = field(default=())

    @property
    def best(self) -> PlanEstimate | None:
        return self.estimates[0] if self.estimates else None


def rank_plans(task: TrainingTask, facts: PlanFacts, *, nodes: int = 1) -> PlanTable:
    """Predict all plans on a number of nodes."""
    estimator, estimates, rejected = _Estimator(task, facts), [], list[tuple[float, TrainingPlan, str]]()
    for plan in candidates(task, facts, nodes=nodes):
        reason = rejection_reason(plan, task, facts)
        if reason is not None:
            rejected.append((0.0, plan, reason))
            continue
        estimate = estimator.spilled(estimator.estimate(plan))
        if estimate.headroom < 0:
            needed, limit = estimate.node_bytes / GIB, facts.memory_bytes / GIB
            reason = f"needs at least {needed:.2f} GiB of a node, {limit:.2f} GiB are available"
            rejected.append((needed, plan, reason))
            continue
        estimates.append(estimate)
    rejected.sort(key=lambda row: row[0])  # the first reason about memory has the smallest need
    reasons = [(plan, reason) for _, plan, reason in rejected]
    return PlanTable(task=task, facts=facts, estimates=ordered(estimates), rejected=reasons)


def ordered(estimates: Sequence[PlanEstimate]) -> list[PlanEstimate]:
    """Return estimates in order of seconds; within RESOLUTION in order of rounding, memory, changes of defaults, micro-batch.

    MPI's own sums (`iallreduce`) and `zero2` are not measured, and have to save UNMEASURED_MARGIN.
    """

    def seconds(one: PlanEstimate) -> float:
        is_measured = one.plan.collectives == "hierarchical" and (one.plan.sharding != "zero2" or one.source == "timed")
        return one.seconds * (1.0 if is_measured else 1 + UNMEASURED_MARGIN)

    least = min(map(seconds, estimates), default=1.0)

    def key(one: PlanEstimate) -> tuple[int, bool, int, int, int, float]:
        plan, resident = one.plan, one.ranks_per_node * (one.memory.total - one.memory.activations)
        memory = int(resident / (MEMORY_RESOLUTION * min(one.memory_limit, MAX_MEMORY)))
        changes = SHARDINGS.index(plan.sharding) + (plan.collectives != "hierarchical") + (plan.batch_shares != "equal")
        interval = int((seconds(one) / least - 1) / RESOLUTION)
        return interval, plan.reduce_dtype != "fp32", memory, changes, -plan.micro_batch_size, one.seconds

    return sorted(estimates, key=key)


def different(estimates: Sequence[PlanEstimate], most: int) -> list[PlanEstimate]:
    """Return the best plans of different arrangements, and further plans up to a number, in the given order."""
    firsts = {
        (one.arrangement, one.plan.reduce_dtype, one.plan.collectives, one.plan.batch_shares): id(one)
        for one in reversed(estimates)
    }
    chosen = sorted(estimates, key=lambda one: id(one) not in firsts.values())[:most]
    return [one for one in estimates if one in chosen]


def smallest_nodes(task: TrainingTask, facts: PlanFacts) -> int | None:
    """Return the smallest number of nodes on which a plan fits; None if none does."""
    nodes, below = 1, 0
    while nodes <= min(MAX_NODES, task.run.global_batch_size):
        if rank_plans(task, facts, nodes=nodes).estimates:
            while nodes - below > 1:
                middle = (nodes + below) // 2
                if rank_plans(task, facts, nodes=middle).estimates:
                    nodes = middle
                else:
                    below = middle
            return nodes
        if facts.links is None:
            return None
        below, nodes = nodes, 2 * nodes
    return None


def largest_micro_batch(estimate: PlanEstimate) -> int:
    """Return the number of images of a forward pass for which the memory of a plan is sufficient."""
    image = estimate.memory.activations / estimate.plan.micro_batch_size
    return estimate.plan.micro_batch_size + int(max(0.0, estimate.headroom) / estimate.ranks_per_node / image)


@dataclass(frozen=True)
class _Estimator:
    task: TrainingTask
    facts: PlanFacts

    @staticmethod
    def _process_bytes(plan: TrainingPlan, costs: RankCosts) -> float:
        """Return the memory of a rank's process; a single rank of a node was measured without MPI."""
        if costs.process_bytes is None:
            return PROCESS_BYTES
        return costs.process_bytes + MPI_BYTES * (plan.ranks_per_node == 1 < plan.nodes)

    def estimate(self, plan: TrainingPlan) -> PlanEstimate:
        costs, run = self.facts.costs_of(plan), self.task.run
        assert costs is not None, "rejected before"
        ranks = data_ranks(plan, self.facts)
        seconds, update = self._slowest(plan, costs)
        # Earlier micro-batches exchange their gradients only under zero2. Within a node, these exchanges cost nothing measurable.
        exchanges = len(seconds) if plan.sharding == "zero2" else 1
        exposed = costs.exposed_seconds
        if plan.nodes > 1:
            between = self._between_nodes(plan, costs, seconds[-1:] if exchanges > 1 else seconds, update)
            exposed += exchanges * between
        memory = rank_memory(
            run,
            images=min(plan.micro_batch_size, -(-run.global_batch_size // ranks)),
            tokens=self.task.tokens,
            image=costs.image_bytes,
            recompute=plan.recompute,
            sharding=plan.sharding,
            shards=plan.ranks_per_node if plan.sharding == "node" else ranks,
            tensor_ranks=tensor_ranks(plan, self.facts),
            snapshot=self.task.checkpoint_mode == "async",
            process=self._process_bytes(plan, costs),
        )
        snapshot = memory.state - memory.gradients
        saved = snapshot / (COPY_BANDWIDTH if self.task.checkpoint_mode == "async" else DISK_BANDWIDTH)
        return PlanEstimate(
            plan=plan,
            computing=sum(seconds) + update,
            exposed=exposed,
            saving=saved / run.checkpoint_every,
            memory=memory,
            ranks_per_node=plan.ranks_per_node,
            memory_limit=self.facts.memory_bytes,
            spread=costs.spread,
            source=costs.source,
        )

    def _slowest(self, plan: TrainingPlan, costs: RankCosts) -> tuple[list[float], float]:
        """Return the seconds of the micro-batches and of the update, on the rank that needs the longest time."""
        speeds, ranks = self.facts.speeds, data_ranks(plan, self.facts)
        share = -(-self.task.run.global_batch_size // ranks)
        update = costs.update_seconds / (plan.nodes if plan.sharding in ("zero1", "zero2") else 1)
        shares = {speed: share for speed, _ in speeds}
        if plan.batch_shares == "measured":
            counts = [round(part * ranks) for _, part in speeds]
            pace = [1 / speed for (speed, _), count in zip(speeds, counts, strict=True) for _ in range(count)]
            equal = [self.task.run.global_batch_size // len(pace)] * len(pace)
            for rank in range(self.task.run.global_batch_size - sum(equal)):
                equal[rank] += 1
            balanced = balanced_shares(equal, [images * time for images, time in zip(equal, pace, strict=True)])
            shares = {
                speed: max(n for n, time in zip(balanced, pace, strict=True) if time == 1 / speed)
                for speed, _ in speeds
            }

        def batches(images: int) -> list[float]:
            count, rest = divmod(images, plan.micro_batch_size)
            return [costs.seconds(rest)] * (rest > 0) + [costs.seconds(plan.micro_batch_size)] * count

        slowest = max(shares, key=lambda speed: (sum(batches(shares[speed])) + update) / speed)
        return [seconds / slowest for seconds in batches(shares[slowest])], update / slowest

    def spilled(self, estimate: PlanEstimate) -> PlanEstimate:
        """Return the estimate with data in the file tier, if memory is insufficient and the tier is large enough."""
        files, memory, plan = self.facts.files, estimate.memory, estimate.plan
        excess = -estimate.headroom / plan.ranks_per_node
        state = memory.optimizer + memory.averages
        if files is None or excess <= 0 or excess > min(files.rank_bytes, state + memory.activations):
            return estimate
        # State moves in both directions once per step, activations once per micro-batch.
        batches = math.ceil(self.task.run.global_batch_size / data_ranks(plan, self.facts) / plan.micro_batch_size)
        moved = 2 * plan.ranks_per_node * (min(excess, state) + batches * max(0.0, excess - state))
        stall = max(0.0, moved / files.bandwidth - estimate.computing)
        return replace(estimate, stall=stall, spilled_bytes=excess, spread=SPILL_SPREAD, source="derived")

    @cached_property
    def _workload(self) -> ModelWorkload:
        return self.task.workload

    def _between_nodes(self, plan: TrainingPlan, costs: RankCosts, seconds: Sequence[float], update: float) -> float:
        """Return the seconds that links between nodes and slower ranks add to a step on one node."""
        assert self.facts.links is not None, "rejected before"
        per_node = data_ranks(plan, self.facts) // plan.nodes
        computing = ComputeTime(
            seconds=sum(seconds) + update,
            images=per_node,  # the time of a node does not depend on the number of nodes here
            fixed_seconds=sum(seconds) + update,
            earlier_seconds=sum(seconds[:-1]),
            optimizer_seconds=update,
            forward_share=costs.forward_share,
            spread=self.facts.spread,
        )
        collective: Collective = "hierarchical" if plan.collectives == "hierarchical" else "ring"
        gathers = plan.sharding in ("zero1", "zero2")
        method = ReductionMethod(label="", collective=collective, wire=plan.reduce_dtype, zero1=gathers)
        scenario = Scenario(
            model=self._workload,
            method=method,
            computing=computing,
            links=self.facts.links,
            ranks_per_node=per_node,
            steps=8,
        )
        many, one = scenario.point(plan.nodes), scenario.point(1)
        slower = many.straggling_seconds if self.facts.spread else 0.0
        return max(0.0, many.exposed_seconds - one.exposed_seconds) + slower
