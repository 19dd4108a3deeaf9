"""All arrangements of a training run on equal nodes, ordered by predicted seconds of a step.

Legend: B images of the global batch, m images of a micro-batch, R data-parallel ranks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from dithc.config import training
from dithc.core.units import GIB
from dithc.engine.cost.links import Links, Wire
from dithc.engine.cost.memory import LAUNCHER_BYTES, RankMemory, rank_memory
from dithc.engine.cost.scenario import ComputeTime, ReductionMethod, Scenario
from dithc.engine.cost.workload import FORWARD_SHARE, ModelWorkload

RESOLUTION = 0.01  # of predicted seconds; plans within it are ordered by memory and micro-batch
MAX_NODES = 1 << 14
# Assumed bytes per second of a rank's copy for a checkpoint, and of its file.
COPY_BANDWIDTH, DISK_BANDWIDTH = 3e9, 0.2e9
# Seconds of a micro-batch with recomputation: the forward pass is repeated.
RECOMPUTE_PASSES = 1 + FORWARD_SHARE


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Arrangement of a training run: settings of `machine` and of the run that do not change its results."""

    strategy: training.StrategyName = "cftp"
    nodes: int = 1
    ranks_per_node: int = 1
    cpus_per_rank: int = 1
    sharding: training.Sharding = "none"
    reduce_dtype: Wire = "fp32"
    recompute: training.Recompute = "none"
    micro_batch_size: int = 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def machine_settings(self) -> dict[str, Any]:
        """Keys of the section `machine`."""
        names = ("strategy", "nodes", "ranks_per_node", "cpus_per_rank", "sharding", "reduce_dtype")
        return {name: getattr(self, name) for name in names}

    @property
    def run_settings(self) -> dict[str, Any]:
        """Keys of the run's section."""
        return {"micro_batch_size": self.micro_batch_size, "activation_checkpointing": self.recompute}

    def __str__(self) -> str:
        nodes = f"{self.nodes} nodes x " if self.nodes > 1 else ""
        parts = [f"{nodes}{self.ranks_per_node} x {self.cpus_per_rank} cores, {self.strategy}"]
        parts += [self.sharding] if self.sharding != "none" else []
        parts += [f"{self.reduce_dtype} sums"] if self.reduce_dtype != "fp32" else []
        parts += ["recompute"] if self.recompute != "none" else []
        return ", ".join([*parts, f"micro-batch {self.micro_batch_size}"])


@dataclass(frozen=True, kw_only=True)
class RankCosts:
    """Costs of a rank in an arrangement, with all ranks of its node active.

    Attributes:
        call_seconds: of a micro-batch, without its images.
        image_seconds: of an image of a micro-batch.
        update_seconds: of a step, without micro-batches: gradient norm, update, average.
        exposed_seconds: wait for the sums of the ranks of a node after the backward pass.
        images: images of the largest measured micro-batch.
        process_bytes: memory without state and activations.
        image_bytes: memory of an image of a micro-batch; None for the closed form.
        spread: relative difference between measured steps.
    """

    call_seconds: float
    image_seconds: float
    update_seconds: float = 0.0
    exposed_seconds: float = 0.0
    forward_share: float = FORWARD_SHARE
    images: int = 1
    process_bytes: float | None = None
    image_bytes: float | None = None
    spread: float = 0.1
    source: str = "measured"

    def seconds(self, images: int) -> float:
        """Return the seconds of a micro-batch."""
        return self.call_seconds + self.image_seconds * images


Arrangement = tuple[training.StrategyName, int, training.Sharding, training.Recompute]
"""Strategy, ranks per node, sharding, recomputation."""


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """Numbers about the nodes: costs of arrangements, sizes, links.

    Attributes:
        memory_bytes: memory of a node for the ranks.
        links: links between nodes; None if unknown.
        spread: standard deviation of the log of a rank's speed in a step, for several nodes.
    """

    costs: Mapping[Arrangement, RankCosts]
    cores: int
    dies: int = 1
    memory_bytes: float = math.inf
    links: Links | None = None
    spread: float = 0.0

    def costs_of(self, plan: TrainingPlan) -> RankCosts | None:
        """Return the costs of a plan's arrangement, derived from others if it was not measured; None if unknown."""
        name: Arrangement = (plan.strategy, plan.ranks_per_node, plan.sharding, plan.recompute)
        if name in self.costs:
            return self.costs[name]
        if plan.recompute != "none" and (plain := self.costs_of(replace(plan, recompute="none"))) is not None:
            return self._recomputing(plain)
        if plan.sharding != "none" and (whole := self.costs_of(replace(plan, sharding="none"))) is not None:
            return replace(whole, update_seconds=whole.update_seconds / plan.ranks_per_node, source="derived")
        return None

    def _recomputing(self, plain: RankCosts) -> RankCosts:
        """Return costs with recomputation, by the ratios of another arrangement if it was measured with both."""
        time, memory, process = RECOMPUTE_PASSES, None, plain.process_bytes
        for (strategy, ranks, sharding, recompute), costs in self.costs.items():
            base = self.costs.get((strategy, ranks, sharding, "none"))
            if recompute == "block" and base is not None:
                images = 2
                time = costs.seconds(images) / base.seconds(images)
                if base.image_bytes and costs.image_bytes and plain.image_bytes:
                    memory = plain.image_bytes * costs.image_bytes / base.image_bytes
                if base.process_bytes and costs.process_bytes and plain.process_bytes:
                    process = plain.process_bytes + costs.process_bytes - base.process_bytes
        call, image = plain.call_seconds * time, plain.image_seconds * time
        found = replace(plain, call_seconds=call, image_seconds=image, source="derived")
        return replace(found, image_bytes=memory, process_bytes=process)


@dataclass(frozen=True, kw_only=True)
class PlanEstimate:
    """Predicted seconds of a step by part, and memory of a rank.

    Attributes:
        spread: relative half-width of the interval of seconds.
        source: origin of the costs: measured, derived, described; timed if the plan itself was run.
        correction: typical ratio of timed plans to their predictions.
        measured_seconds: of the plan itself, if it was timed.
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
    correction: float = 1.0
    measured_seconds: float | None = None

    @property
    def arrangement(self) -> Arrangement:
        return self.plan.strategy, self.plan.ranks_per_node, self.plan.sharding, self.plan.recompute

    @property
    def predicted(self) -> float:
        """Predicted seconds of a step."""
        return (self.computing + self.exposed + self.saving) * self.correction

    @property
    def seconds(self) -> float:
        """Seconds of a step: measured if the plan was timed, else predicted."""
        return self.predicted if self.measured_seconds is None else self.measured_seconds

    @property
    def interval(self) -> tuple[float, float]:
        return self.seconds * (1 - self.spread), self.seconds * (1 + self.spread)

    @property
    def launcher_bytes(self) -> float:
        return LAUNCHER_BYTES if self.plan.ranks > 1 else 0.0

    @property
    def node_bytes(self) -> float:
        """Memory of the ranks of a node and their launcher."""
        return self.ranks_per_node * self.memory.total + self.launcher_bytes

    @property
    def headroom(self) -> float:
        return self.memory_limit - self.node_bytes

    def limit(self, best: "PlanEstimate") -> str:
        """Return why this plan is slower than the best one, or needs more memory."""
        parts = {name: getattr(self, name) - getattr(best, name) for name in ("computing", "exposed", "saving")}
        name = max(parts, key=lambda part: parts[part])
        if self is best or self.seconds <= best.seconds * (1 + RESOLUTION):
            more = (self.node_bytes - best.node_bytes) / GIB
            return "" if self is best else f"as fast; {abs(more):.2f} GiB {'more' if more > 0 else 'less'}"
        label = {"computing": "computing", "exposed": "exchange", "saving": "saving"}[name]
        return f"{self.seconds / best.seconds - 1:+.0%}: {label} {parts[name]:+.3g} s"


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """A run with the shape of its latents."""

    name: str
    run: training.RunConfig
    tokens: int
    channels: int = 4
    labels: int = 1000
    checkpoint_mode: training.CheckpointMode = "async"

    @property
    def workload(self) -> ModelWorkload:
        return ModelWorkload(self.run.model, self.tokens, self.channels, self.labels)


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
    estimator, estimates, rejected = _Estimator(task, facts), [], []
    for plan in candidates(task, facts, nodes=nodes):
        reason = rejection_reason(plan, task, facts)
        if reason is not None:
            rejected.append((plan, reason))
            continue
        estimate = estimator.estimate(plan)
        if estimate.headroom < 0:
            needed, limit = estimate.node_bytes / GIB, facts.memory_bytes / GIB
            rejected.append((plan, f"needs {needed:.2f} GiB of a node, {limit:.2f} GiB are available"))
            continue
        estimates.append(estimate)
    return PlanTable(task=task, facts=facts, estimates=ordered(estimates), rejected=rejected)


def ordered(estimates: Sequence[PlanEstimate]) -> list[PlanEstimate]:
    """Return estimates by seconds in steps of RESOLUTION, then sums in fp32, memory without activations, and micro-batch."""
    least = min((one.seconds for one in estimates), default=1.0)

    def key(one: PlanEstimate) -> tuple[int, bool, float, int, float]:
        interval, resident = int((one.seconds / least - 1) / RESOLUTION), one.memory.total - one.memory.activations
        is_rounded = one.plan.reduce_dtype != "fp32"
        return interval, is_rounded, one.ranks_per_node * resident, -one.plan.micro_batch_size, one.seconds

    return sorted(estimates, key=key)


def different(estimates: Sequence[PlanEstimate], most: int) -> list[PlanEstimate]:
    """Return the best plans of different arrangements, and further plans up to a number, in the given order."""
    firsts = {(one.arrangement, one.plan.reduce_dtype): id(one) for one in reversed(estimates)}
    chosen = sorted(estimates, key=lambda one: id(one) not in firsts.values())[:most]
    return [one for one in estimates if one in chosen]


def candidates(task: TrainingTask, facts: PlanFacts, *, nodes: int) -> Iterator[TrainingPlan]:
    """Yield all plans on a number of nodes, legal or not."""
    arrangements = dict.fromkeys((strategy, ranks) for strategy, ranks, _, _ in facts.costs)
    wires: tuple[Wire, ...] = ("fp32", "bf16") if nodes > 1 else ("fp32",)
    shardings: tuple[training.Sharding, ...] = ("none", "zero1", "zero2")
    recomputes: tuple[training.Recompute, ...] = ("none", "block")
    for (strategy, ranks), sharding, wire, recompute in product(arrangements, shardings, wires, recomputes):
        plan = TrainingPlan(
            strategy=strategy,
            nodes=nodes,
            ranks_per_node=ranks,
            cpus_per_rank=max(1, facts.cores // ranks),
            sharding=sharding,
            reduce_dtype=wire,
            recompute=recompute,
        )
        share = -(-task.run.global_batch_size // data_ranks(plan, facts))
        for size in sorted({share, *(1 << power for power in range(share.bit_length()) if 1 << power < share)}):
            yield replace(plan, micro_batch_size=size)


def data_ranks(plan: TrainingPlan, facts: PlanFacts) -> int:
    """Return the number of ranks with different images."""
    return plan.ranks // tensor_ranks(plan, facts)


def tensor_ranks(plan: TrainingPlan, facts: PlanFacts) -> int:
    """Return the number of ranks that share the layers."""
    return max(1, plan.ranks_per_node // facts.dies) if plan.strategy == "dp+tp" else 1


def rejection_reason(plan: TrainingPlan, task: TrainingTask, facts: PlanFacts) -> str | None:
    """Return why a plan is illegal, or None."""
    ranks, images, heads = data_ranks(plan, facts), task.run.global_batch_size, task.run.model.shape[2]
    if plan.ranks_per_node > facts.cores:
        return f"{plan.ranks_per_node} ranks on the {facts.cores} cores of a node"
    if ranks > images:
        return f"{ranks} ranks for {images} images of a step"
    if plan.strategy == "dp+tp" and plan.ranks_per_node % facts.dies:
        return f"{plan.ranks_per_node} ranks on {facts.dies} dies"
    if (shared := tensor_ranks(plan, facts)) > 1 and heads % shared:
        return f"{heads} attention heads for {shared} ranks"
    if plan.sharding != "none" and (plan.strategy == "dp+tp" or plan.ranks == 1):
        return "one rank has the whole state" if plan.ranks == 1 else "dp+tp does not shard the optimizer state"
    if plan.nodes > 1 and facts.links is None:
        return "the links between nodes are neither measured nor described"
    return None if facts.costs_of(plan) is not None else "not measured"


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

    def estimate(self, plan: TrainingPlan) -> PlanEstimate:
        costs, run = self.facts.costs_of(plan), self.task.run
        assert costs is not None, "rejected before"
        ranks = data_ranks(plan, self.facts)
        share = -(-run.global_batch_size // ranks)
        batches = [min(plan.micro_batch_size, share - first) for first in range(0, share, plan.micro_batch_size)]
        seconds = [costs.seconds(images) for images in batches]
        update = costs.update_seconds / (1 if plan.sharding == "none" else plan.nodes)
        exposed = costs.exposed_seconds
        if plan.nodes > 1:
            exposed += self._between_nodes(plan, costs, seconds, update)
        memory = rank_memory(
            run,
            images=max(batches),
            tokens=self.task.tokens,
            image=costs.image_bytes,
            recompute=plan.recompute,
            sharding=plan.sharding,
            shards=ranks,
            tensor_ranks=tensor_ranks(plan, self.facts),
            snapshot=self.task.checkpoint_mode == "async",
            **({} if costs.process_bytes is None else {"process": costs.process_bytes}),
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
        method = ReductionMethod(label="", wire=plan.reduce_dtype)
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
