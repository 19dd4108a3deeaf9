"""Table of the interleaved variants, and the processes that run them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from dithc.bench.sampling import diffusers_pipeline
from dithc.bench.sampling.runners import DithcRunner, SamplingCase
from dithc.core.logging import UserError
from dithc.model import DiT, DiTConfig
from dithc.sample.parallel import ParallelDegrees, SamplingGroup, SamplingWork, best_degrees

Role = Literal["first", "every", "ranks", "alone"]
"""Processes: the first rank, every rank independently, all ranks together, or the process with the cores of all ranks.
"""


@dataclass(frozen=True)
class SamplingVariant:
    """Variant of sampling or decoding, and the processes that run it.

    Attributes:
        role: processes that run it.
        description: text for the result.
        degrees: parallel degrees by number of ranks, for ranks that sample together.
    """

    name: str
    role: Role
    description: str
    degrees: Callable[[int], ParallelDegrees] | None = None

    def calls(self, ranks: int) -> int:
        """Return the images or network evaluations per round."""
        return ranks if self.role == "every" else 1

    def build(
        self, model: DiT, cell: SamplingCase, team: SamplingGroup
    ) -> DithcRunner | diffusers_pipeline.DiffusersRunner:
        """Build the variant in a process."""
        return (
            diffusers_pipeline.DiffusersRunner(model, cell)
            if self.name == DIFFUSERS
            else DithcRunner(model, cell, team)
        )

    def skip_reason(self, cell: SamplingCase, config: DiTConfig, *, ranks: int) -> str | None:
        """Return the reason why its degrees do not fit a cell, or None."""
        if self.degrees is None:
            return None
        degrees = self.degrees(ranks)
        if degrees.size != ranks:
            return f"{degrees} do not multiply to {ranks} ranks"
        work = SamplingWork.of(config, shards=[1], branches=2 if cell.guidance != 1 else 1)
        try:
            best_degrees(work, ranks=ranks, ranks_per_node=ranks, fixed=asdict(degrees))
        except UserError as error:
            return str(error).splitlines()[1].rpartition(": ")[2]
        return None


BASE, ALL_CORES, CEILING, DIFFUSERS = "one-rank", "all-cores", "side-by-side", "diffusers"
VARIANTS = (
    SamplingVariant(BASE, "first", "one rank with its cores, other ranks idle: baseline of the speedups"),
    SamplingVariant(ALL_CORES, "alone", "one process with the cores of all ranks: the alternative without partition"),
    SamplingVariant(
        CEILING, "every", "one image per rank simultaneously, without communication: upper limit of the machine"
    ),
    SamplingVariant(
        "cfg",
        "ranks",
        "the two guidance branches in parallel; with more than two ranks, tokens in shared memory within each "
        "branch; data combined in shared memory does not count as sent",
        lambda ranks: ParallelDegrees(cfg=2, shared=max(1, ranks // 2)),
    ),
    SamplingVariant(
        "shared-kv",
        "ranks",
        "partitioned tokens, with keys and values in shared memory, which do not count as sent",
        lambda ranks: ParallelDegrees(shared=ranks),
    ),
    SamplingVariant(
        "ulysses",
        "ranks",
        "partitioned tokens, by messages: during attention each rank has all tokens of some heads; messages of "
        "a rank to itself count as sent",
        lambda ranks: ParallelDegrees(ulysses=ranks),
    ),
    SamplingVariant(
        "ring",
        "ranks",
        "partitioned tokens, by messages: keys and values are passed along the ring; rounding differs from one rank",
        lambda ranks: ParallelDegrees(ring=ranks),
    ),
    SamplingVariant(
        DIFFUSERS, "alone", "diffusers' DiTPipeline with the same weights, one process with the cores of all ranks"
    ),
)
NORMAL = tuple(one.name for one in VARIANTS if one.name != DIFFUSERS)
"""Names of all variants that need no other library."""


def named(names: Sequence[str]) -> list[SamplingVariant]:
    """Return the variants with these names in table order."""
    return [variant for variant in VARIANTS if variant.name in names]
