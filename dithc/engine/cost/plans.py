"""All arrangements of a training run, legal or not, and the numbers that predict them.

Legend: B images of the global batch, m images of a micro-batch, R data-parallel ranks.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

from dithc.config import training
from dithc.engine.cost.links import Links, Wire
from dithc.engine.cost.workload import FORWARD_SHARE, ModelWorkload

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
    collectives: Literal["hierarchical", "iallreduce"] = "hierarchical"
    reduce_dtype: Wire = "fp32"
    batch_shares: Literal["equal", "measured"] = "equal"
    recompute: training.Recompute = "none"
    micro_batch_size: int = 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def has_usual_sums(self) -> bool:
        """Return whether sums and shares are the defaults."""
        return (self.collectives, self.reduce_dtype, self.batch_shares) == ("hierarchical", "fp32", "equal")

    @property
    def machine_settings(self) -> dict[str, Any]:
        """Keys of the section `machine`."""
        names = ("strategy", "nodes", "ranks_per_node", "cpus_per_rank", "sharding", "collectives", "reduce_dtype")
        return {name: getattr(self, name) for name in (*names, "batch_shares")}

    @property
    def run_settings(self) -> dict[str, Any]:
        """Keys of the run's section."""
        return {"micro_batch_size": self.micro_batch_size, "activation_checkpointing": self.recompute}

    def __str__(self) -> str:
        counts = {"node": self.nodes, "rank": self.ranks_per_node, "core": self.cpus_per_rank}
        sizes = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if name != "node" or count > 1]
        parts = [f"{' x '.join(sizes)}, {self.strategy}"]
        parts += [self.sharding] if self.sharding != "none" else []
        parts += [self.collectives] if self.collectives != "hierarchical" else []
        parts += ["measured shares"] if self.batch_shares != "equal" else []
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
class FileTier:
    """Files of the ranks of a node on a local disk (`machine.memory`): bytes per rank, and bytes per second of the node."""

    folder: str
    rank_bytes: float
    bandwidth: float


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """Numbers about the nodes: costs of arrangements, sizes, links.

    Attributes:
        memory_bytes: memory of a node for the ranks.
        files: file tier for data that does not fit in memory; None without one.
        links: links between nodes; None if unknown.
        spread: standard deviation of the log of a rank's speed in a step, for several nodes.
        speeds: relative speed and share of the nodes of each kind, if the nodes are unequal. Costs are for speed 1.
    """

    costs: Mapping[Arrangement, RankCosts]
    cores: int
    dies: int = 1
    memory_bytes: float = math.inf
    files: FileTier | None = None
    links: Links | None = None
    spread: float = 0.0
    speeds: tuple[tuple[float, float], ...] = ((1.0, 1.0),)

    def costs_of(self, plan: TrainingPlan) -> RankCosts | None:
        """Return the costs of a plan's arrangement, derived from others if it was not measured; None if unknown."""
        name: Arrangement = (plan.strategy, plan.ranks_per_node, plan.sharding, plan.recompute)
        if name in self.costs:
            return self.costs[name]
        if plan.recompute != "none" and (plain := self.costs_of(replace(plan, recompute="none"))) is not None:
            return self._recomputing(plain, plan.strategy)
        if (
            plan.sharding in ("node", "zero2")
            and (shared := self.costs_of(replace(plan, sharding="zero1"))) is not None
        ):
            return replace(shared, source=_derived(shared))
        if plan.sharding != "none" and (whole := self.costs_of(replace(plan, sharding="none"))) is not None:
            return replace(whole, update_seconds=whole.update_seconds / plan.ranks_per_node, source=_derived(whole))
        return None

    def _recomputing(self, plain: RankCosts, strategy: training.StrategyName) -> RankCosts:
        """Return costs with recomputation, by the ratios of another arrangement that was measured with both.

        An arrangement of the same strategy is preferred. Without a measurement, the forward pass is repeated.
        """
        time, memory, process = RECOMPUTE_PASSES, None, plain.process_bytes
        measured = sorted(self.costs.items(), key=lambda item: item[0][0] == strategy)
        for (name, ranks, sharding, recompute), costs in measured:
            base = self.costs.get((name, ranks, sharding, "none"))
            if recompute == "block" and base is not None:
                images = 2
                time = costs.seconds(images) / base.seconds(images)
                if base.image_bytes and costs.image_bytes and plain.image_bytes:
                    memory = plain.image_bytes * costs.image_bytes / base.image_bytes
                if base.process_bytes and costs.process_bytes and plain.process_bytes:
                    process = plain.process_bytes + costs.process_bytes - base.process_bytes
        call, image = plain.call_seconds * time, plain.image_seconds * time
        found = replace(plain, call_seconds=call, image_seconds=image, source=_derived(plain))
        return replace(found, image_bytes=memory, process_bytes=process)


def _derived(costs: RankCosts) -> str:
    return "described" if costs.source == "described" else "derived"


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


def candidates(task: TrainingTask, facts: PlanFacts, *, nodes: int) -> Iterator[TrainingPlan]:
    """Yield all plans on a number of nodes, legal or not."""
    arrangements = dict.fromkeys((strategy, ranks) for strategy, ranks, _, _ in facts.costs)
    sums: list[dict[str, Any]] = [{}]
    if nodes > 1:
        sums += [{"reduce_dtype": "bf16"}, {"collectives": "iallreduce"}]
    shares: list[dict[str, Any]] = [{"batch_shares": kind} for kind in ("equal", "measured")[: len(facts.speeds)]]
    recomputes: tuple[training.Recompute, ...] = ("none", "block")
    for (strategy, ranks), sharding, sums_, shares_, recompute in product(
        arrangements, get_args(training.Sharding), sums, shares, recomputes
    ):
        plan = TrainingPlan(
            strategy=strategy,
            nodes=nodes,
            ranks_per_node=ranks,
            cpus_per_rank=max(1, facts.cores // ranks),
            sharding=sharding,
            recompute=recompute,
            **sums_,
            **shares_,
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
        return "sharding requires several ranks" if plan.ranks == 1 else "dp+tp does not shard the optimizer state"
    if plan.sharding == "node" and (plan.nodes == 1 or plan.ranks_per_node == 1):
        return "zero1 is the same on one node" if plan.nodes == 1 else "sharding node needs several ranks per node"
    if plan.nodes > 1 and facts.links is None:
        return "the links between nodes are neither measured nor described"
    return None if facts.costs_of(plan) is not None else "not measured"
