"""Costs of arrangements from the JSON of rehearsals: of networks with few blocks, then of the complete network."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from dithc.engine.cost import memory, plans

MICRO_BATCH = ("batch", "forward", "backward")
REHEARSED_PARAMETERS, MIN_BLOCKS = 12e6, 2  # more weights than caches hold, and less than take long to allocate
# The part of a micro-batch that is proportional to its images, at least; noise may hide it.
MIN_IMAGE_SHARE = 0.3
MICRO_BATCHES = 2  # of a step of a rehearsal with several sizes
MIN_SPREAD = 0.05
MEMORY_MARGIN = 1.02  # on measured memory, because peaks of other micro-batches differ by 2%


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


def time_costs(
    result: Mapping[str, Any], name: plans.Arrangement, *, sizes: Sequence[int], tensor_ranks: int
) -> plans.RankCosts:
    """Return the times of a rank without recomputation from the JSON of a rehearsal with micro-batches of `sizes`: medians."""
    exchanges = name[1] > tensor_ranks
    steps = [_Step.of(step, exchanges=exchanges) for row in result["each_rank"] for step in row["phases"]]
    first = {size: median(seconds for step in steps for seconds in step.alone if size in step.sizes) for size in sizes}
    small, large = min(sizes), max(sizes)
    image = (first[large] - first[small]) / (large - small) if large > small else first[large] / large
    image = min(max(image, MIN_IMAGE_SHARE * first[large] / large), first[large] / large)
    call = first[large] - image * large
    if large > small:  # ranks wait for each other, and the sum of medians is below the median of sums
        sums = {
            size: median(seconds for seconds, step in zip(result["seconds"], steps, strict=False) if size in step.sizes)
            for size in sizes
        }
        stretch = max(1.0, (sums[large] - sums[small]) / (MICRO_BATCHES * image * (large - small)))
        call, image = stretch * call, stretch * image
    update = median(step.rest for step in steps)
    expected = [sum(call + image * size for size in step.sizes) + update for step in steps[: len(result["seconds"])]]
    waits = [seconds - whole for seconds, whole in zip(result["seconds"], expected, strict=True)]
    wait = max(0.0, median(waits))
    if name[1] == 1:  # without an exchange, the rest of a step is work of the rank
        update, wait = update + wait, 0.0
    forward = median(step.forward for step in steps)
    repeated = forward if name[3] == "block" else 0.0  # share of the forward pass that is repeated
    return plans.RankCosts(
        call_seconds=call * (1 - repeated),
        image_seconds=image * (1 - repeated),
        update_seconds=update,
        exposed_seconds=wait,
        forward_share=forward / (1 - repeated),
        images=large,
        spread=max(MIN_SPREAD, *(abs(wait) / whole for wait, whole in zip(waits, expected, strict=True))),
    )


def derived(times: plans.RankCosts, name: plans.Arrangement) -> plans.RankCosts:
    """Return the times of an arrangement of the same ranks: recomputation repeats the forward pass, shards divide the update."""
    _, ranks, sharding, recompute = name
    work = 1 + times.forward_share * (recompute == "block")
    update = times.update_seconds / (ranks if sharding != "none" else 1)
    return replace(
        times,
        call_seconds=work * times.call_seconds,
        image_seconds=work * times.image_seconds,
        update_seconds=update,
    )


def with_memory(
    costs: plans.RankCosts,
    result: Mapping[str, Any],
    task: plans.TrainingTask,
    name: plans.Arrangement,
    *,
    sizes: Sequence[int],
    tensor_ranks: int,
) -> plans.RankCosts:
    """Return the costs with the memory of an image and of the process, from the peaks in the JSON of a rehearsal."""
    _, ranks, sharding, recompute = name
    rows, small, large = result["each_rank"], min(sizes), max(sizes)
    peaks = range(len(rows[0]["peaks"]))
    _, *nodes = (node_bytes([row["peaks"][index] for row in rows]) / ranks for index in peaks)
    image = (nodes[-1] - nodes[0]) / (large - small) if large > small else None
    known = memory.rank_memory(
        task.run,
        images=large,
        tokens=task.tokens,
        image=image,
        process=0.0,
        recompute=recompute,
        sharding=sharding,
        shards=ranks,
        tensor_ranks=tensor_ranks,
    ).total
    return replace(costs, images=large, image_bytes=image, process_bytes=MEMORY_MARGIN * nodes[-1] - known)


def with_common_images(
    costs: Mapping[plans.Arrangement, plans.RankCosts],
    task: plans.TrainingTask,
    tensor_ranks: Callable[[str, int], int],
) -> dict[plans.Arrangement, plans.RankCosts]:
    """Replace the measured memory of an image by the closed form, times the median ratio of all measurements.

    A peak of one process depends on the allocator; the ratio of several is more exact. Ranks that share layers have a
    separate ratio.
    """
    forms, ratios = {}, dict[bool, list[float]]()
    for name, one in costs.items():
        forms[name] = memory.image_bytes(
            task.run, task.tokens, recompute=name[3], tensor_ranks=tensor_ranks(name[0], name[1])
        )
        if one.image_bytes is not None and name[3] == "none":  # recomputation keeps too few tensors for a ratio
            ratios.setdefault(name[0] == "dp+tp", []).append(one.image_bytes / forms[name])
    found = {}
    for name, one in costs.items():
        image = forms[name] * (median(ratios.get(name[0] == "dp+tp", [1.0])) if name[3] == "none" else 1.0)
        assert one.process_bytes is not None
        excess = 0.0 if one.image_bytes is None else (one.image_bytes - image) * one.images
        found[name] = replace(one, image_bytes=image, process_bytes=one.process_bytes + excess)
    return found


@dataclass(frozen=True)
class _Step:
    """Step of a rank: images of its micro-batches, seconds of those without an exchange, share of forward, rest of the step."""

    sizes: list[int]
    alone: list[float]
    forward: float
    rest: float

    @classmethod
    def of(cls, step: Mapping[str, Any], *, exchanges: bool) -> "_Step":
        sizes = [step["images"]] * (step["share"] // step["images"])
        phases = step["seconds"]
        batches = [[seconds for name, seconds in phases if name == phase] for phase in MICRO_BATCH]
        rest = sum(seconds for name, seconds in phases if name not in (*MICRO_BATCH, "wait for gradients"))
        seconds = [sum(parts) for parts in zip(*batches, strict=True)]
        alone = seconds[:-1] if exchanges and len(seconds) > 1 else seconds
        return cls(sizes, alone, batches[1][0] / seconds[0], rest)


def node_bytes(ranks: Sequence[Mapping[str, int]]) -> float:
    """Return the memory of all ranks of a node, which share the pages of files."""
    private = sum(rank["private_bytes"] + rank["shared_bytes"] for rank in ranks)
    return float(private + max(rank["file_bytes"] for rank in ranks))
