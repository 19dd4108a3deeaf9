"""Choice of parallel degrees for a sampling run, from its work and the measured rates of the ranks."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from dithc.engine import native
from dithc.engine.comm import Group
from dithc.engine.cost import Links, sampling
from dithc.engine.hardware import discover_machine
from dithc.sample.generate import ImageGenerator, Images
from dithc.sample.job import SamplingJob
from dithc.sample.parallel import ParallelDenoiser
from dithc.sample.shards import SHARD_IMAGES

CROP_SIDE = 16  # side of the latent crop that is decoded to measure the decoding rate
ROWS = 4  # rows of the larger measured call
ROUNDS, LONG_SECONDS = 5, 0.5
MIN_ROW_SHARE = 0.3  # of a row in the time per row of the larger call, at least; noise may hide it


def chosen_degrees(
    images: Images,
    shards: Sequence[int],
    *,
    job: SamplingJob,
    group: Group,
    layout: tuple[int, int] | None = None,
) -> sampling.DegreesTable:
    """Return all valid degrees by predicted seconds, equal on all ranks; a collective call that measures rates.

    `shards` are the numbers of images to draw. `layout` (nodes, ranks per node) describes other ranks. Raises UserError
    if given degrees do not match.
    """
    work = work_of(images, shards, job=job)
    ranks, ranks_per_node = group.size, _ranks_per_node(group)
    rates = sampling.RankRates()
    # Codec reconstructions only distribute tiles, for which no rates are needed.
    if isinstance(images, ImageGenerator) and (layout is not None or (group.size > 1 and shards)):
        rates = _measured_rates(images, group)
    if layout is not None:
        ranks, ranks_per_node = layout[0] * layout[1], layout[1]
    links: dict[str, Any] = {}
    if (network := discover_machine().network) is not None:
        links = {
            "links": Links.of(discover_machine()),
            "copies": network.rank_memory_bandwidth or network.memory_bandwidth,
        }
    costs = sampling.SamplingCosts(work=work, rates=rates, ranks=ranks, ranks_per_node=ranks_per_node, **links)
    plan = sampling.rank_degrees(costs, fixed=dict(job.degrees))
    # Broadcast from the first rank, because processors may differ in the last bit of a prediction.
    result: sampling.DegreesTable = group.broadcast_object(plan if group.rank == 0 else None)
    return result


def work_of(images: Images, shards: Sequence[int], *, job: SamplingJob) -> sampling.SamplingWork:
    if not isinstance(images, ImageGenerator):
        return sampling.SamplingWork(shards=shards)
    branches = 1 if job.evaluation.guidance_scale == 1.0 else 2
    calls = images.changed(guidance_scale=1.0, guidance_interval=None, guidance_reference=None).network_evaluations()
    guided_calls = images.network_evaluations() - calls if branches == 2 else calls
    config = images.model.config
    return sampling.SamplingWork(
        shards=shards,
        branches=branches,
        windows=images.grid.num_windows if images.grid else 1,
        row_bytes=torch.float32.itemsize * config.out_channels * math.prod(config.size),
        calls=calls,
        lone_calls=calls - guided_calls,
        batch=min(job.evaluation.batch_size, SHARD_IMAGES),
        in_memory=native.library() is not None,
    )


def _ranks_per_node(group: Group) -> int:
    """Return the ranks per node; 1 if nodes differ in size or have no consecutive ranks."""
    names = group.gather_objects(group.node)
    counts = {names.count(name) for name in names}
    is_consecutive = names == sorted(names, key=names.index)
    return counts.pop() if len(counts) == 1 and is_consecutive else 1


def _measured_rates(images: ImageGenerator, group: Group) -> sampling.RankRates:
    """Return the rates of the slowest rank while all ranks measure; collective, in seconds."""
    config, (z, h, w) = images.model.config, images.shape
    part = torch.zeros(1, z, min(h, CROP_SIDE), min(w, CROP_SIDE))
    denoiser = ParallelDenoiser(images.model, bf16=images.bf16)
    group.barrier()
    local = {}
    for rows in (1, ROWS):
        x, y = torch.zeros(rows, config.in_channels, *config.size), torch.zeros(rows, dtype=torch.long)
        local[rows] = _median_seconds(partial(denoiser, x, torch.zeros(rows), y))
        if local[rows] > LONG_SECONDS:
            break
    with torch.no_grad():
        decoding = _median_seconds(lambda: images.codec.decode(part)) * h * w / (part.shape[2] * part.shape[3])
    measured = group.gather_objects((local[1], local.get(ROWS, ROWS * local[1]), decoding))
    return rates_of(*(max(rank[index] for rank in measured) for index in range(3)))


def rates_of(one: float, several: float, decoding: float) -> sampling.RankRates:
    """Return rates from the seconds of calls with one and with ROWS rows, and of a decoded image."""
    row = min(max((several - one) / (ROWS - 1), several / ROWS * MIN_ROW_SHARE), one)
    return sampling.RankRates(call_seconds=one - row, row_seconds=row, decoding_seconds=decoding)


def _median_seconds(action: Callable[[], Any]) -> float:
    """Return the median seconds of an action after a warm-up; a long action runs once."""
    seconds = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
        if seconds[0] > LONG_SECONDS:
            return seconds[0]
    return median(seconds[1:])
