"""The table of choices: predicted seconds of every way to cut a sampling among ranks, and why others do not go."""

from collections.abc import Iterator

from dithc.comm import Group
from dithc.log import problem
from dithc.parallel import choosing
from dithc.sample.choices import chosen_degrees
from dithc.sample.compose import inputs_of, open_images
from dithc.sample.job import Job
from dithc.sample.shards import Shards


def degrees_table(job: Job, group: Group, *, layout: tuple[int, int] | None = None) -> str:
    """Return lines of degrees, best first, for all images of an evaluation, equal on all ranks; nothing is sampled or written.

    This is a collective call, because rates are measured. `layout` (nodes, ranks of each) describes other ranks. Their links
    are those of the machine's description (DITHC_MACHINE); without any, the table excludes degrees that need links and notes
    it. Raises UserError as `sample`, and for an evaluation of a codec alone.
    """
    if job.evaluation.at == "codec":
        raise problem(
            f"--degrees of evaluation {job.name}",
            got="an evaluation of the codec alone",
            expected="one with a network, whose calls are shared",
            fix="start it on as many ranks as there are: its shards and their images are dealt, and nothing is exchanged",
        )
    if layout is None and group.size == 1:
        layout = (1, 1)
    images, _ = open_images(job, tiles_digest=inputs_of(job)[str(job.tiles)])
    shards = Shards(folder=job.out.parent, total=images.count, identity="")
    sizes = [len(shards.indices(shard)) for shard in range(shards.count)]
    chosen = chosen_degrees(images, sizes, job=job, group=group, layout=layout)
    work, rates = chosen.costs.work, chosen.costs.rates
    links = {"in a node": rates.inside, "between nodes": rates.between}
    said = ", ".join(
        f"{name} {'unknown' if link is None else f'{link.bandwidth / 1e9:.3g} GB/s after {link.latency * 1e6:.3g} us'}"
        for name, link in links.items()
    )
    head = (
        f"{images.count} image(s) of {work.tokens} tokens, {work.calls} calls of {work.branches} branch(es); a rank "
        f"{rates.flops / 1e9:.4g} GFLOP/s, half of it with {rates.half_tokens:.3g} tokens; copies "
        f"{rates.copying / 1e9:.3g} GB/s; messages {said} ({rates.source})"
    )
    return "\n".join([head, *_missing(rates, layout), chosen.table()])


def _missing(rates: choosing.Rates, layout: tuple[int, int] | None) -> Iterator[str]:
    """What is to be told of other ranks, whose links nobody knows."""
    nodes, ranks_a_node = layout or (1, 1)
    unknown = [
        *(["in a node"] if ranks_a_node > 1 and rates.inside is None else []),
        *(["between nodes"] if nodes > 1 and rates.between is None else []),
    ]
    if unknown:
        yield (
            f"Ways in which ranks exchange are left out: messages {' and '.join(unknown)} are not known. To have them predicted, "
            "set the environment variable DITHC_MACHINE to the description of a machine with a section `network`, such as "
            "profiles/machines/lx2.yaml."
        )
