"""Steps on increasing numbers of nodes: method of exchange, computing time, stragglers, and the resulting curves."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal

from dithc.core.logging import get_logger, user_error
from dithc.engine.cost.events import StepPlan, simulate_step
from dithc.engine.cost.links import (
    FP32_BYTES,
    WIRE_BYTES,
    Collective,
    Links,
    RankLayout,
    Wire,
    all_reduce_seconds,
)
from dithc.engine.cost.workload import FORWARD_SHARE, ModelWorkload

log = get_logger(__name__)

Mode = Literal["weak", "strong"]


@dataclass(frozen=True, kw_only=True)
class ReductionMethod:
    """Method of gradient exchange.

    Attributes:
        label: name of the curve.
        collective: ring over all ranks, or hierarchical with `wire`.
        shares_memory: whether ranks of a node exchange through memory.
        bucket_bytes: maximum bucket size; None for the rule of dithc.engine.comm.
        zero1: whether sums end as shards and the next forward pass gathers the weights.
        local_steps: steps between two exchanges of local updates, with one worker per node; 0 for sums in each step.
    """

    label: str
    collective: Collective = "hierarchical"
    wire: Wire = "fp32"
    shares_memory: bool = True
    bucket_bytes: int | None = None
    zero1: bool = False
    local_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class ComputeTime:
    """Computing time of a rank of average speed in a step, without exchange.

    Attributes:
        seconds: time of a step with `images` on a node.
        fixed_seconds: part that does not shrink with the images, including `optimizer_seconds`.
        earlier_seconds: part of `seconds` in micro-batches before the last; sums overlap with the last backward pass only.
        forward_share: share of the forward pass in both passes.
        spread: standard deviation of the log of a rank's speed in a step.
    """

    seconds: float
    images: int
    fixed_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    earlier_seconds: float = 0.0
    forward_share: float = FORWARD_SHARE
    spread: float = 0.0

    def seconds_of(self, images: float) -> float:
        """Return seconds of a step with this many images on a node."""
        fixed = max(self.fixed_seconds, self.optimizer_seconds)
        return fixed + (self.seconds - fixed) * images / self.images


@dataclass(frozen=True, kw_only=True)
class Point:
    """Result on one number of nodes: means over the steps, ranks and images over all nodes.

    Attributes:
        exposed_seconds: part of `seconds` in which all ranks wait for sums.
        straggling_seconds: part in which the slowest rank computes longer than an average rank.
        exchange_seconds: time with an active sum.
        wait_of_bucket_seconds: mean seconds of an average rank inside the sum of a bucket.
    """

    nodes: int
    ranks: int
    images: int
    seconds: float
    exposed_seconds: float
    straggling_seconds: float
    exchange_seconds: float
    wait_of_bucket_seconds: float


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Training of a model on any number of nodes; each point is the mean of `steps`, with stragglers from `seed`."""

    model: ModelWorkload
    method: ReductionMethod
    computing: ComputeTime
    links: Links
    ranks_per_node: int
    steps: int = 1
    seed: int = 0

    def plan(self, *, nodes: int, images_per_node: float) -> tuple[StepPlan, float]:
        """Return the plan of a step, and the seconds of weight gathering (zero1) beyond the forward pass."""
        method, computing = self.method, self.computing
        layout = RankLayout(nodes=nodes, ranks_per_node=self.ranks_per_node, shares_memory=method.shares_memory)
        buckets = self.model.buckets(method.bucket_bytes) if layout.ranks > 1 else ()
        link: dict[str, Any] = {"layout": layout, "links": self.links, "wire": method.wire}
        exchange = [all_reduce_seconds(bucket.size, collective=method.collective, **link) for bucket in buckets]
        seconds, optimizer = computing.seconds_of(images_per_node), computing.optimizer_seconds
        last = seconds - optimizer - computing.earlier_seconds
        forward, backward = last * computing.forward_share, last * (1 - computing.forward_share)
        gathering = 0.0
        if method.zero1:  # the two halves of an all-reduce move the same bytes
            exchange = [half / 2 for half in exchange]
            optimizer /= layout.ranks
            gathering = max(0.0, sum(exchange) - forward)
        plan = StepPlan(
            before=optimizer + computing.earlier_seconds + forward,
            ready=tuple(backward * bucket.ready_share for bucket in buckets),
            backward=backward,
            exchange=tuple(exchange),
        )
        return plan, gathering

    def point(self, nodes: int, images: int | None = None) -> Point:
        """Simulate steps on a number of nodes.

        `images` is the number per step over all ranks, by default the measured number per node. The fullest rank has
        images / ranks, rounded up.
        """
        ranks = nodes * self.ranks_per_node
        images = self.computing.images * nodes if images is None else images
        if images < ranks:
            expected = f"at least one per rank for {ranks} ranks"
            raise user_error("images per step", got=images, expected=expected, fix="use fewer nodes")
        if self.method.local_steps:
            return self._local_point(nodes, images)
        plan, gathering = self.plan(nodes=nodes, images_per_node=math.ceil(images / ranks) * self.ranks_per_node)
        draws = largest_draws(ranks, steps=self.steps, seed=self.seed)
        slowest = [math.exp(self.computing.spread * draw) for draw in draws]
        steps = [simulate_step(plan, [factor, min(1.0, factor)]) for factor in slowest]  # plus an average rank
        return Point(
            nodes=nodes,
            ranks=ranks,
            images=images,
            seconds=fmean(step.seconds for step in steps) + gathering,
            exposed_seconds=fmean(step.exposed_seconds for step in steps) + gathering,
            straggling_seconds=fmean((plan.before + plan.backward) * (factor - 1) for factor in slowest),
            exchange_seconds=sum(plan.exchange) * (2 if self.method.zero1 else 1),
            wait_of_bucket_seconds=fmean([wait for step in steps for wait in step.waits[1]] or [0.0]),
        )

    def _local_point(self, nodes: int, images: int) -> Point:
        """Simulate local updates with overlap: each worker writes one update in a round and reads the updates of all others."""
        steps, share = self.method.local_steps, math.ceil(images / nodes)
        alone = replace(self, method=replace(self.method, local_steps=0), computing=replace(self.computing, spread=0.0))
        seconds = alone.point(1, share).seconds
        draws = largest_draws(nodes * self.ranks_per_node, steps=self.steps, seed=self.seed)
        spread = self.computing.spread / math.sqrt(steps)  # of the mean speed in a round
        straggling = seconds * (fmean(math.exp(spread * draw) for draw in draws) - 1)
        exchange = self.links.message(nodes * self.model.gradient_bytes * WIRE_BYTES[self.method.wire] / FP32_BYTES)
        exposed = max(0.0, exchange / steps - seconds - straggling) if nodes > 1 else 0.0
        return Point(
            nodes=nodes,
            ranks=nodes * self.ranks_per_node,
            images=images,
            seconds=seconds + straggling + exposed,
            exposed_seconds=exposed,
            straggling_seconds=straggling,
            exchange_seconds=exchange / steps if nodes > 1 else 0.0,
            wait_of_bucket_seconds=0.0,
        )

    def points(self, nodes: Sequence[int], *, mode: Mode = "weak", global_batch_size: int | None = None) -> list[Point]:
        """Return a point per number of nodes. Log and omit counts with fewer images than ranks."""
        points = []
        for count in sorted(set(nodes)):
            images = self.computing.images * count if mode == "weak" else global_batch_size or 0
            if images < count * self.ranks_per_node:
                log.warning("skipping %d nodes: %d images for %d ranks", count, images, count * self.ranks_per_node)
                continue
            points.append(self.point(count, images))
        return points

    def curves(
        self, nodes: Sequence[int], *, mode: Mode = "weak", global_batch_size: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the simulated curve for JSON, or no curve without points."""
        points = self.points(nodes, mode=mode, global_batch_size=global_batch_size)
        rows = [
            point_row(self.model, efficiency=efficiency, **asdict(point))
            for point, efficiency in zip(points, efficiencies(points), strict=True)
        ]
        head: dict[str, Any] = {"label": self.method.label, "kind": "simulated", "model": self.model.name, "mode": mode}
        head |= {"global_batch_size": global_batch_size, "method": asdict(self.method)}
        return [{**head, "points": rows}] if rows else []


def largest_draws(ranks: int, *, steps: int, seed: int) -> list[float]:
    """Return per step the largest of R normal draws; for a given seed it grows with R.

    The largest of R draws is below x with probability F(x)^R for R ranks, so that one uniform number per step is sufficient. The
    numbers of the steps are stratified over [0, 1), so that the mean of few steps approximates the mean of many.
    """
    import numpy as np  # both are slow to import
    from scipy.special import ndtri

    uniform = (np.arange(steps) + np.random.default_rng(seed).random(steps)) / steps
    return [float(value) for value in ndtri(uniform ** (1 / ranks))]


def efficiencies(points: Sequence[Point]) -> list[float]:
    """Return images per second and node, relative to the fewest nodes."""
    rates = [point.images / point.seconds / point.nodes for point in points]
    return [rate / rates[0] for rate in rates]


def point_row(
    model: ModelWorkload,
    *,
    nodes: int,
    ranks: int,
    images: int,
    seconds: float,
    efficiency: float,
    exposed_seconds: float | None,
    **fields: float,
) -> dict[str, Any]:
    """Return a point of a curve for JSON; `linear_flops_per_second` omits attention."""
    return {
        "nodes": nodes,
        "ranks": ranks,
        "seconds": seconds,
        "efficiency": efficiency,
        "exposed_seconds": exposed_seconds,
        "flops_per_second": model.flops * images / seconds,
        "linear_flops_per_second": model.linear_flops * images / seconds,
        "images_per_step": images,
        **fields,
    }
