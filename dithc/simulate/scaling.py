"""Steps on increasing numbers of nodes: method of exchange, computing time, stragglers, and the resulting curves.

R is the number of ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from dithc.log import logger, problem
from dithc.simulate.events import Plan, Step, simulate_step
from dithc.simulate.links import Collective, Layout, Links, Wire, all_reduce_seconds
from dithc.simulate.workload import FORWARD_SHARE, Model, buckets_of

log = logger(__name__)

Mode = Literal["weak", "strong"]
# A communication thread on a core of the compute team halves the speed of that core's part of every operation, and the
# team waits for it.
SHARED_CORE_SLOWDOWN = 2.0


@dataclass(frozen=True, kw_only=True)
class Method:
    """Method of gradient exchange.

    Attributes:
        label: name of the curve.
        collective: ring or rabenseifner over all ranks, or hierarchical with `wire`.
        shares_memory: whether ranks of a node exchange through memory.
        bucket_bytes: maximum bucket size; None for the rule of dithc.comm.
        overlaps: whether sums begin during the backward pass.
        communication_core: whether communication threads have their own cores.
        zero1: whether sums end as shards and the next forward pass gathers the weights.
    """

    label: str
    collective: Collective = "hierarchical"
    wire: Wire = "fp32"
    shares_memory: bool = True
    bucket_bytes: int | None = None
    overlaps: bool = True
    communication_core: bool = True
    zero1: bool = False


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Computing time of a rank of average speed in a step, without exchange.

    Attributes:
        seconds: time of a step with `images` on a node.
        fixed_seconds: part that does not shrink with the images, including `optimizer_seconds`.
        forward_share: share of the forward pass in both passes.
        spread: standard deviation of the log of a rank's speed in a step.
    """

    seconds: float
    images: int
    fixed_seconds: float = 0.0
    optimizer_seconds: float = 0.0
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
        wait_of_bucket: mean seconds of an average rank inside the sum of a bucket.
    """

    nodes: int
    ranks: int
    images: int
    seconds: float
    exposed_seconds: float
    straggling_seconds: float
    exchange_seconds: float
    wait_of_bucket: float


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Links and ranks per node of any number of nodes."""

    links: Links
    ranks_per_node: int


def plan_of(
    model: Model, method: Method, computing: Computing, cluster: Cluster, *, nodes: int, images_per_node: float
) -> tuple[Plan, float]:
    """Return the plan of a step, and seconds of weight gathering (zero1).

    Only gathering beyond the forward pass counts.
    """
    layout = Layout(nodes=nodes, ranks_per_node=cluster.ranks_per_node, shares_memory=method.shares_memory)
    buckets = buckets_of(model.gradients, bucket_bytes=method.bucket_bytes)
    exchange = [
        all_reduce_seconds(
            bucket.size, collective=method.collective, layout=layout, links=cluster.links, wire=method.wire
        )
        for bucket in buckets
    ]
    seconds, optimizer = computing.seconds_of(images_per_node), computing.optimizer_seconds
    forward = (seconds - optimizer) * computing.forward_share
    backward = seconds - optimizer - forward
    gathering = 0.0
    if method.zero1:  # the two halves of an all-reduce move the same bytes
        exchange = [half / 2 for half in exchange]
        optimizer /= layout.ranks
        gathering = max(0.0, sum(exchange) - forward)
    plan = Plan(
        before=optimizer + forward,
        ready=tuple(backward * bucket.ready_share for bucket in buckets),
        backward=backward,
        exchange=tuple(exchange) if layout.ranks > 1 else (),
        overlaps=method.overlaps,
        slowdown=1.0 if method.communication_core else SHARED_CORE_SLOWDOWN,
    )
    return (plan if plan.exchange else _alone(plan)), gathering


def _alone(plan: Plan) -> Plan:
    return Plan(before=plan.before, ready=(), backward=plan.backward, exchange=())


def simulate_point(
    model: Model,
    method: Method,
    computing: Computing,
    cluster: Cluster,
    *,
    nodes: int,
    images: int,
    steps: int,
    seed: int,
) -> Point:
    """Simulate `steps` steps on a number of nodes, with stragglers from `seed`.

    `images` is the number per step over all ranks; the fullest rank has images / ranks, rounded up.

    Raises:
        UserError: there are fewer images than ranks.
    """
    ranks = nodes * cluster.ranks_per_node
    if images < ranks:
        raise problem(
            "images per step", got=images, expected=f"at least one per rank for {ranks} ranks", fix="use fewer nodes"
        )
    images_per_node = math.ceil(images / ranks) * cluster.ranks_per_node
    plan, gathering = plan_of(model, method, computing, cluster, nodes=nodes, images_per_node=images_per_node)
    average = plan.before + plan.backward
    played: list[Step] = []
    straggling: list[float] = []
    for draw in largest_draws(ranks, steps=steps, seed=seed):
        slowest = math.exp(computing.spread * draw)
        played.append(simulate_step(plan, [slowest, min(1.0, slowest)]))  # plus an average rank, for its waits
        straggling.append(average * (slowest - 1))
    waits = [wait for step in played for wait in step.waits[1]]
    return Point(
        nodes=nodes,
        ranks=ranks,
        images=images,
        seconds=fmean(step.seconds for step in played) + gathering,
        exposed_seconds=fmean(step.exposed_seconds for step in played) + gathering,
        straggling_seconds=fmean(straggling),
        exchange_seconds=sum(plan.exchange) * (2 if method.zero1 else 1),
        wait_of_bucket=fmean(waits) if waits else 0.0,
    )


def largest_draws(ranks: int, *, steps: int, seed: int) -> list[float]:
    """Return per step the largest of R normal draws; for a given seed it grows with R.

    The largest of R draws is below x with probability F(x)^R, so that one uniform number per step is sufficient. The
    numbers of the steps are stratified over [0, 1), so that the mean of few steps approximates the mean of many.
    """
    uniform = (np.arange(steps) + np.random.default_rng(seed).random(steps)) / steps
    return [float(value) for value in ndtri(uniform ** (1 / ranks))]


def simulate_curve(
    model: Model,
    method: Method,
    computing: Computing,
    cluster: Cluster,
    *,
    nodes: Sequence[int],
    mode: Mode,
    global_batch: int | None = None,
    steps: int,
    seed: int,
) -> list[Point]:
    """Return a point per number of nodes.

    Logs and omits counts with fewer images than ranks.
    """
    points = []
    for count in sorted(set(nodes)):
        images = computing.images * count if mode == "weak" else global_batch or 0
        if images < count * cluster.ranks_per_node:
            log.warning("skipping %d nodes: %d images for %d ranks", count, images, count * cluster.ranks_per_node)
            continue
        points.append(
            simulate_point(model, method, computing, cluster, nodes=count, images=images, steps=steps, seed=seed)
        )
    return points


def efficiencies(points: Sequence[Point]) -> list[float]:
    """Return images per second and node, relative to the fewest nodes."""
    rates = [point.images / point.seconds / point.nodes for point in points]
    return [rate / rates[0] for rate in rates]


def curve_of(
    method: Method, model: Model, points: Sequence[Point], *, mode: Mode, global_batch: int | None
) -> dict[str, Any]:
    """Return a simulated curve for JSON; `linear_flops_per_second` omits attention."""
    rows = [
        {
            "nodes": point.nodes,
            "ranks": point.ranks,
            "seconds": point.seconds,
            "efficiency": efficiency,
            "exposed_seconds": point.exposed_seconds,
            "flops_per_second": model.flops.training_total * point.images / point.seconds,
            "linear_flops_per_second": model.flops.training_linear * point.images / point.seconds,
            "images_per_step": point.images,
            "straggling_seconds": point.straggling_seconds,
            "exchange_seconds": point.exchange_seconds,
            "wait_of_bucket_seconds": point.wait_of_bucket,
        }
        for point, efficiency in zip(points, efficiencies(points), strict=True)
    ]
    head = {"label": method.label, "kind": "simulated", "model": model.name, "mode": mode, "global_batch": global_batch}
    return {**head, "method": asdict(method), "points": rows}
