"""Table of parallel degrees of a sampling run with predicted seconds, and the reasons for excluded degrees."""

from dithc.core.logging import user_error
from dithc.engine.comm import Group
from dithc.engine.hardware import discover_machine
from dithc.sample.job import SamplingJob
from dithc.sample.parallel_plan import chosen_degrees
from dithc.sample.pipeline import inputs_of, open_images
from dithc.sample.shards import ImageShards


def degrees_table(job: SamplingJob, group: Group, *, layout: tuple[int, int] | None = None) -> str:
    """Return lines of degrees, best first, for all images of an evaluation, equal on all ranks. No images are drawn.

    The call is collective, because it measures rates. `layout` (nodes, ranks per node) describes other ranks. Links are
    those of the machine's description (DITHC_MACHINE_FILE), or assumed. Raises UserError as `sample` does, and for a
    codec-only evaluation.
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
    costs, machine = plan.costs, discover_machine()
    work, rates = costs.work, costs.rates
    lines = [
        f"{images.count} image(s), {work.calls} calls of {work.branches} branch(es) and {work.windows} window(s)",
        f"measured: a row {rates.row_seconds:.3g} s, and {rates.call_seconds:.3g} s per call",
    ]
    if costs.ranks > costs.ranks_per_node:
        source = (
            f"described: {machine.model_name}" if machine.network else "assumed; DITHC_MACHINE_FILE describes others"
        )
        rate, latency = 1 / costs.links.byte / 1e9, costs.links.latency * 1e6
        lines.append(f"links between nodes: {rate:.3g} GB/s after {latency:.3g} us ({source})")
    lines.append(plan.table())
    return "\n".join(lines)
