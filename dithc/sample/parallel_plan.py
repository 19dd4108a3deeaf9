"""Choice of parallel degrees for a sampling run, from its work and the measured rates of the ranks."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from dithc.engine import native
from dithc.engine.comm import Group
from dithc.engine.cost import Links, sampling
from dithc.engine.hardware import discover_machine
from dithc.engine.hcops import token_shard
from dithc.model import DiT, DiTConfig, flops_per_image
from dithc.sample.generate import ImageGenerator, Images
from dithc.sample.job import SamplingJob
from dithc.sample.parallel import ParallelDenoiser, rotary_of
from dithc.sample.shards import SHARD_IMAGES

CROP_SIDE = 16  # side of the latent crop that is decoded to measure the decoding rate
MAX_TOKENS, PART, BLOCKS = 1024, 4, 2  # tokens of the long strip; divisor for the short strip; number of timed blocks
ROUNDS, LONG_SECONDS = 5, 0.5
# A long strip takes at most this multiple of its tokens' time, also if one of the two measurements was disturbed.
MAX_FIXED = 20


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
        rates = _measured_rates(images, work, group)
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
    return network_work(
        images.model.config,
        shards=shards,
        branches=branches,
        windows=images.grid.num_windows if images.grid else 1,
        number_bytes=2 if images.bf16 else 4,
        calls=calls,
        lone_calls=calls - guided_calls,
        batch=min(job.evaluation.batch_size, SHARD_IMAGES),
        in_memory=native.library() is not None,
    )


def network_work(config: DiTConfig, *, shards: Sequence[int], **settings: Any) -> sampling.SamplingWork:
    """Return the work of a network; `settings` are other fields of `sampling.SamplingWork`."""
    width = config.hidden_size
    # approximate FLOPs of adaLN in the blocks and the final layer, and of the condition's layers
    uncut = 2 * (6 * config.depth + 3) * width**2
    return sampling.SamplingWork(
        shards=shards,
        tokens=config.num_tokens,
        heads=config.num_heads,
        width=width,
        depth=config.depth,
        linear_flops=flops_per_image(config).forward_linear - uncut,
        uncut_flops=uncut,
        numbers=config.patch_size**2 * config.out_channels,
        **settings,
    )


def _ranks_per_node(group: Group) -> int:
    """Return the ranks per node; 1 if nodes differ in size or have no consecutive ranks."""
    names = group.gather_objects(group.node)
    counts = {names.count(name) for name in names}
    is_consecutive = names == sorted(names, key=names.index)
    return counts.pop() if len(counts) == 1 and is_consecutive else 1


def _measured_rates(images: ImageGenerator, work: sampling.SamplingWork, group: Group) -> sampling.RankRates:
    """Return the rates of the slowest rank while all ranks measure; collective, in seconds."""
    z, h, w = images.shape
    part = torch.zeros(1, z, min(h, CROP_SIDE), min(w, CROP_SIDE))
    group.barrier()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=images.bf16):
        local = block_seconds(images.model, work)
    local["call"] = _call_seconds(images, work, local["long"])
    with torch.no_grad():
        local["decoding"] = _median_seconds(lambda: images.codec.decode(part)) * h * w / (part.shape[2] * part.shape[3])
    measured = group.gather_objects(local)
    slowest = {name: max(rank[name] for rank in measured) for name in local}
    return rates_of(slowest, work)


def rates_of(seconds: dict[str, float], work: sampling.SamplingWork) -> sampling.RankRates:
    """Return rates from the seconds of blocks with a long and a short strip of one image.

    A block of t tokens takes (linear(t) + attention(t)) / F + linear(1) h / F, for F FLOP/s and h half tokens.
    """

    def flops(tokens: int) -> float:
        return (work.linear_flops * tokens / work.tokens + work.attention_flops(tokens)) / work.depth

    long, short = strips(work)
    difference = seconds["long"] - seconds["short"]
    rate = (flops(long) - flops(short)) / difference if long > short and difference > 0 else float("inf")
    complete = flops(long) / seconds["long"]
    rate = min(max(rate, complete), MAX_FIXED * complete)
    half = (seconds["long"] * rate - flops(long)) / (work.linear_flops / work.tokens / work.depth)
    return sampling.RankRates(
        flops=rate, half_tokens=half, call_seconds=seconds["call"], decoding_seconds=seconds["decoding"]
    )


def strips(work: sampling.SamplingWork) -> tuple[int, int]:
    """Return the tokens of the long and the short strip."""
    long = min(work.tokens, MAX_TOKENS)
    return long, max(1, long // PART)


def block_seconds(model: DiT, work: sampling.SamplingWork) -> dict[str, float]:
    """Return the median seconds of a block with a `long` and a `short` strip of one image."""
    blocks, width = model.chain()[:BLOCKS], model.config.hidden_size
    seconds = {}
    for name, tokens in zip(("long", "short"), strips(work), strict=True):
        strip, c = torch.zeros(1, tokens, width), torch.zeros(1, width)
        with token_shard.part_of(work.tokens), rotary_of(model, slice(0, tokens)):
            seconds[name] = _median_seconds(lambda strip=strip, c=c: blocks(strip, c)) / min(BLOCKS, work.depth)  # type: ignore[misc]
    return seconds


def _call_seconds(images: ImageGenerator, work: sampling.SamplingWork, block: float) -> float:
    """Return the seconds of a call outside of blocks; 0 if a call takes too long to measure."""
    if work.tokens > MAX_TOKENS or work.depth * block > LONG_SECONDS:
        return 0.0
    config, denoiser = images.model.config, ParallelDenoiser(images.model, bf16=images.bf16)
    x, y = torch.zeros(1, config.in_channels, *config.size), torch.zeros(1, dtype=torch.long)
    return max(0.0, _median_seconds(lambda: denoiser(x, torch.zeros(1), y)) - work.depth * block)


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
