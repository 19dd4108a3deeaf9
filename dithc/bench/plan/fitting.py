"""Costs of arrangements from the JSON of rehearsals: of networks with few blocks, then of the complete network."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from dithc.engine.cost import memory, plans, workload

MICRO_BATCH = ("batch", "forward", "backward")
REHEARSED_PARAMETERS, MIN_BLOCKS = 30e6, 2  # more weights than caches hold, and less than take long to allocate
# The part of a micro-batch that is proportional to its images, at least; noise may hide it.
MIN_IMAGE_SHARE = 0.3
MIN_SPREAD = 0.05
# On measured memory, because peaks of other micro-batches differ by 1%; with tensor parallelism they were up to 9% higher.
MEMORY_MARGIN, TENSOR_MARGIN = 1.01, 1.09


def shortened(task: plans.TrainingTask) -> plans.TrainingTask:
    """Return the task with as many blocks as have REHEARSED_PARAMETERS together, or all."""
    _, depth, _ = task.run.model.shape
    blocks = max(MIN_BLOCKS, math.ceil(REHEARSED_PARAMETERS / (task.run.model.parameters / depth)))
    model = task.run.model.updated(depth=min(depth, blocks))
    return replace(task, run=task.run.updated(model=model))


def scaled(
    costs: Mapping[plans.Arrangement, plans.RankCosts], short: plans.TrainingTask, task: plans.TrainingTask
) -> dict[plans.Arrangement, plans.RankCosts]:
    """Return the costs of the complete network from those of a network with fewer blocks."""
    operations = task.workload.flops / short.workload.flops
    parameters = task.run.model.parameters / short.run.model.parameters
    found = {}
    for name, one in costs.items():
        forms = [memory.image_bytes(each.run, task.tokens, recompute=name[3]) for each in (task, short)]
        found[name] = replace(
            one,
            call_seconds=one.call_seconds * operations,
            image_seconds=one.image_seconds * operations,
            update_seconds=one.update_seconds * parameters,
            exposed_seconds=one.exposed_seconds * parameters,
            image_bytes=None if one.image_bytes is None else one.image_bytes * forms[0] / forms[1],
        )
    return found


def fit(
    result: Mapping[str, Any],
    task: plans.TrainingTask,
    name: plans.Arrangement,
    *,
    sizes: Sequence[int],
    tensor_ranks: int,
) -> plans.RankCosts:
    """Return the costs of a rank from the JSON of a rehearsal with micro-batches of `sizes` (ascending): medians."""
    ranks, rows = name[1], result["each_rank"]
    steps = [_Step.of(step) for row in rows for step in row["phases"]]
    first = {size: median(seconds for step in steps for seconds in step.without_exchange(size)) for size in sizes}
    small, large = min(sizes), max(sizes)
    image = (first[large] - first[small]) / (large - small) if large > small else first[large] / large
    image = min(max(image, MIN_IMAGE_SHARE * first[large] / large), first[large] / large)
    call = first[large] - image * large
    update = median(step.rest for step in steps)
    expected = [sum(call + image * size for size in step.sizes) + update for step in steps[: len(result["seconds"])]]
    waits = [seconds - whole for seconds, whole in zip(result["seconds"], expected, strict=True)]
    wait = max(0.0, median(waits))
    if ranks == 1:  # without an exchange, the rest of a step is work of the rank
        update, wait = update + wait, 0.0
    peaks = range(len(rows[0]["peaks"]))
    _, *nodes = (node_bytes([row["peaks"][index] for row in rows]) / ranks for index in peaks)
    bytes_of_image = (nodes[-1] - nodes[0]) / (large - small) if large > small else None
    costs = plans.RankCosts(
        call_seconds=call,
        image_seconds=image,
        update_seconds=update,
        exposed_seconds=wait,
        forward_share=median(step.forward[0] / step.seconds[0] for step in steps),
        images=large,
        image_bytes=bytes_of_image,
        spread=max(MIN_SPREAD, *(abs(wait) / whole for wait, whole in zip(waits, expected, strict=True))),
    )
    margin = TENSOR_MARGIN if name[0] == "dp+tp" else MEMORY_MARGIN
    process = margin * nodes[-1] - _bytes_without_process(costs, task, name, tensor_ranks, large)
    return replace(costs, process_bytes=process)


def _bytes_without_process(
    costs: plans.RankCosts, task: plans.TrainingTask, name: plans.Arrangement, tensor_ranks: int, images: int
) -> float:
    _, ranks, sharding, recompute = name
    return memory.rank_memory(
        task.run,
        images=images,
        tokens=task.tokens,
        image=costs.image_bytes,
        process=0.0,
        recompute=recompute,
        sharding=sharding,
        shards=ranks,
        tensor_ranks=tensor_ranks,
    ).total


def with_common_calls(
    costs: Mapping[plans.Arrangement, plans.RankCosts],
) -> dict[plans.Arrangement, plans.RankCosts]:
    """Reduce the noise in the time of micro-batches by means over equal work.

    Sharding of the state does not affect micro-batches, and recomputation adds the time of a forward pass. The share of the
    call in a micro-batch of one image is common to all arrangements that divide layers, and to all others. A single pair of
    sizes determines it too roughly to extrapolate.
    """
    shares: dict[bool, list[float]] = {True: [], False: []}
    for name, one in costs.items():
        shares[name[0] == "dp+tp"] += (one.images - 1) * [
            one.call_seconds / one.seconds(1)
        ]  # weighted by the distance of sizes
    forward = [one.forward_share for name, one in costs.items() if name[3] == "none"]
    work = {"none": 1.0, "block": 1.0 + median(forward or [workload.FORWARD_SHARE])}
    found: dict[plans.Arrangement, plans.RankCosts] = {}
    for name, one in costs.items():
        known = shares[name[0] == "dp+tp"] or shares[False]
        if not known:
            found[name] = one
            continue
        share = median(known)
        units = [
            other.seconds(size) / (share + (1 - share) * size) / work[equal[3]]  # of a micro-batch of one image
            for equal, other in costs.items()
            for size in {1, other.images}
            if equal[:2] == name[:2]
        ]
        unit = work[name[3]] * fmean(units)
        found[name] = replace(one, call_seconds=share * unit, image_seconds=(1 - share) * unit)
    return found


def with_common_images(
    costs: Mapping[plans.Arrangement, plans.RankCosts],
    task: plans.TrainingTask,
    tensor_ranks: Callable[[str, int], int],
) -> dict[plans.Arrangement, plans.RankCosts]:
    """Replace the measured memory of an image by the closed form, times the median ratio of all measurements.

    A peak of one process depends on the allocator; the ratio of several is more exact.
    """
    forms, ratios = {}, {"none": [1.0], "block": [1.0]}
    for name, one in costs.items():
        forms[name] = memory.image_bytes(
            task.run, task.tokens, recompute=name[3], tensor_ranks=tensor_ranks(name[0], name[1])
        )
        if one.image_bytes is not None:
            ratios[name[3]].append(one.image_bytes / forms[name])
    found = {}
    for name, one in costs.items():
        ratio = median(ratios[name[3]][1:] or [1.0])
        image = forms[name] * (ratio if name[3] == "none" else max(1.0, ratio))  # few tensors: too little for a fit
        assert one.process_bytes is not None
        excess = 0.0 if one.image_bytes is None else (one.image_bytes - image) * one.images
        found[name] = replace(one, image_bytes=image, process_bytes=one.process_bytes + excess)
    return found


@dataclass(frozen=True)
class _Step:
    """Seconds of a step of a rank: of each micro-batch with its images, of their forward passes, and of the update."""

    sizes: list[int]
    seconds: list[float]
    forward: list[float]
    rest: float

    @classmethod
    def of(cls, step: Mapping[str, Any]) -> "_Step":
        sizes = [step["images"]] * (step["share"] // step["images"])
        phases = step["seconds"]
        batches = [[seconds for name, seconds in phases if name == phase] for phase in MICRO_BATCH]
        rest = sum(seconds for name, seconds in phases if name not in (*MICRO_BATCH, "wait for gradients"))
        return cls(sizes, [sum(parts) for parts in zip(*batches, strict=True)], batches[1], rest)

    def without_exchange(self, size: int) -> list[float]:
        """Return the seconds of micro-batches of a size before the last, whose backward pass overlaps with the exchange."""
        last = max(1, len(self.sizes) - 1)
        return [
            seconds for images, seconds in zip(self.sizes[:last], self.seconds[:last], strict=True) if images == size
        ]


def node_bytes(ranks: Sequence[Mapping[str, int]]) -> float:
    """Return the memory of all ranks of a node, which share the pages of files."""
    private = sum(rank["private_bytes"] + rank["shared_bytes"] for rank in ranks)
    return float(private + max(rank["file_bytes"] for rank in ranks))
