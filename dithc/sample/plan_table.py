"""Table of parallel degrees of a sampling run with predicted seconds, and the reasons for excluded degrees."""

from collections.abc import Iterator

from dithc.core.logging import user_error
from dithc.engine.comm import Group
from dithc.sample.job import SamplingJob
from dithc.sample.parallel import planner
from dithc.sample.parallel_plan import chosen_degrees
from dithc.sample.pipeline import inputs_of, open_images
from dithc.sample.shards import ImageShards


def degrees_table(job: SamplingJob, group: Group, *, layout: tuple[int, int] | None = None) -> str:
    """Return lines of degrees, best first, for all images of an evaluation, equal on all ranks. No images are drawn.

    The call is collective, because it measures rates. `layout` (nodes, ranks per node) describes other ranks, with the
    links of the machine's description (DITHC_MACHINE_FILE). Without a description the table excludes degrees that need links
    and notes it. Raises UserError as `sample` does, and for a codec-only evaluation.
    """
    if job.evaluation.checkpoint == "codec":
        raise user_error(
            f"--show-plan does not apply to evaluation {job.name}",
            got="a codec-only evaluation",
            expected="an evaluation with a network",
            fix="start it on all available ranks: they divide the shards and images and exchange no data",
        )
    if layout is None and group.size == 1:
        layout = (1, 1)
    images, _ = open_images(job, tiles_digest=inputs_of(job)[str(job.tiles)])
    shards = ImageShards(folder=job.out.parent, total=images.count, identity="")
    sizes = [len(shards.indices(shard)) for shard in range(shards.count)]
    plan = chosen_degrees(images, sizes, job=job, group=group, layout=layout)
    work, rates = plan.costs.work, plan.costs.rates
    links = {"in a node": rates.inside, "between nodes": rates.between}
    messages = ", ".join(
        f"{name} {'unknown' if link is None else f'{link.bandwidth / 1e9:.3g} GB/s after {link.latency * 1e6:.3g} us'}"
        for name, link in links.items()
    )
    summary = (
        f"{images.count} image(s) of {work.tokens} tokens, {work.calls} calls of {work.branches} branch(es); a rank "
        f"{rates.flops / 1e9:.4g} GFLOP/s, half of it with {rates.half_tokens:.3g} tokens; copies "
        f"{rates.copy_rate / 1e9:.3g} GB/s; messages {messages} ({rates.source})"
    )
    return "\n".join([summary, *_link_notes(rates, layout), plan.table()])


def _link_notes(rates: planner.MachineRates, layout: tuple[int, int] | None) -> Iterator[str]:
    nodes, ranks_per_node = layout or (1, 1)
    unknown = [
        *(["within a node"] if ranks_per_node > 1 and rates.inside is None else []),
        *(["between nodes"] if nodes > 1 and rates.between is None else []),
    ]
    if unknown:
        yield (
            f"Degrees with communication are excluded: the links {' and '.join(unknown)} are unknown. To predict them, "
            "set the environment variable DITHC_MACHINE_FILE to a machine description with a section `network`, such as "
            "profiles/machines/lx2.yaml."
        )
