"""Choice of parallel degrees for a sampling run, from its work and the measured rates of the ranks."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from dithc.engine import native
from dithc.engine.comm import Group
from dithc.engine.hardware import discover_machine
from dithc.sample.generate import ImageGenerator, Images
from dithc.sample.job import SamplingJob
from dithc.sample.parallel import SamplingWork, planner
from dithc.sample.shards import SHARD_IMAGES

CROP_SIDE = 16  # side of the latent crop that is decoded to measure the decoding rate


def chosen_degrees(
    images: Images,
    shards: Sequence[int],
    *,
    job: SamplingJob,
    group: Group,
    layout: tuple[int, int] | None = None,
) -> planner.PlanResult:
    """Return all valid degrees by predicted seconds, equal on all ranks; a collective call that measures rates.

    `shards` are the numbers of images to draw. `layout` (nodes, ranks per node) describes other ranks, with the links
    of the machine's description. Raises UserError if given degrees do not match.
    """
    nodes, work = _nodes(group), work_of(images, shards, job=job)
    ranks, ranks_per_node = group.size, len(nodes[0])
    rates = planner.MachineRates(flops=1.0, inside=None, between=None, copy_rate=1.0, decoding=1.0)
    # Codec reconstructions only distribute tiles, for which no rates are needed.
    if isinstance(images, ImageGenerator) and (layout is not None or (group.size > 1 and shards)):
        rates = _rates(images, work, group, nodes)
    if layout is not None:
        ranks, ranks_per_node = layout[0] * layout[1], layout[1]
        rates = _described_links(rates, ranks_per_node)
    costs = planner.CostModel(work=work, rates=rates, ranks=ranks, ranks_per_node=ranks_per_node)
    plan = planner.rank_degrees(costs, fixed=dict(job.degrees))
    # Broadcast from the first rank, because processors may differ in the last bit of a prediction.
    result: planner.PlanResult = group.broadcast_object(plan if group.rank == 0 else None)
    return result


def work_of(images: Images, shards: Sequence[int], *, job: SamplingJob) -> SamplingWork:
    if not isinstance(images, ImageGenerator):
        return SamplingWork(shards=shards)
    branches = 1 if job.evaluation.guidance_scale == 1.0 else 2
    calls = images.changed(guidance_scale=1.0, guidance_interval=None, guidance_reference=None).network_evaluations()
    guided_calls = images.network_evaluations() - calls if branches == 2 else calls
    return SamplingWork.of(
        images.model.config,
        shards=shards,
        branches=branches,
        windows=images.grid.num_windows if images.grid else 1,
        number_bytes=2 if images.bf16 else 4,
        calls=calls,
        lone_calls=calls - guided_calls,
        batch=min(job.evaluation.batch_size, SHARD_IMAGES),
        decoders=images.shape[1] if job.parallel_vae else 1,
        in_memory=native.library() is not None,
    )


def _nodes(group: Group) -> list[list[int]]:
    """Return the ranks of each node in order, or single ranks if nodes differ in size or have no consecutive ranks."""
    names = group.gather_objects(group.node)
    nodes = [[rank for rank, name in enumerate(names) if name == node] for node in dict.fromkeys(names)]
    is_regular = len({len(ranks) for ranks in nodes}) == 1
    is_consecutive = [rank for ranks in nodes for rank in ranks] == list(range(group.size))
    return nodes if is_regular and is_consecutive else [[rank] for rank in range(group.size)]


def _rates(
    images: ImageGenerator, work: SamplingWork, group: Group, nodes: Sequence[Sequence[int]]
) -> planner.MachineRates:
    z, h, w = images.shape
    part = torch.zeros(1, z, min(h, CROP_SIDE), min(w, CROP_SIDE))

    def decode() -> float:
        with torch.no_grad():
            images.codec.decode(part)
        return h * w / (part.shape[2] * part.shape[3])

    return planner.measure_rates(images.model, group, work=work, bf16=images.bf16, decode=decode, nodes=nodes)


def _described_links(rates: planner.MachineRates, ranks_per_node: int) -> planner.MachineRates:
    """Return measured rates with the links of the machine's description, if available."""
    machine = discover_machine()
    if machine.network is None:
        return rates
    described = planner.rates_from_description(machine, ranks_per_node=ranks_per_node, flops=rates.flops)
    source = f"{rates.source}, links {described.source}"
    links = {name: getattr(described, name) for name in ("inside", "between", "barrier_seconds")}
    return replace(rates, **links, source=source)
