"""The table of what takes turns, and where each is made.

Legend: R ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from dithc.bench.sampling import theirs
from dithc.bench.sampling.ways import Cache, Cell, Ours, Way
from dithc.config import training
from dithc.log import UserError
from dithc.model import DiT, DiTConfig
from dithc.parallel import Degrees, Team, Work, least

Where = Literal["first", "every", "ranks", "alone"]
"""The first of the ranks, each of them for itself, all of them together; the process that has the cores of all."""


def ours(model: DiT, cell: Cell, team: Team) -> Way:
    """Build dithc's sampler with the parallel degrees of the team."""
    return Ours(model, cell, team)


def of_diffusers(model: DiT, cell: Cell, _: Team) -> Way:
    """Build the sampler of diffusers."""
    return theirs.Theirs(model, cell)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to sample, and the processes that run it.

    Attributes:
        degrees: parallel degrees by number of ranks, for ranks that sample together.
        make: factory, called in each process.
        absent: reason why it is not supported, checked before `make`; None if it is.
        is_optional: run only if requested by name.
        cache: cache across the steps of an image; a single step is then not measured.
    """

    name: str
    what: str
    where: Where
    degrees: Callable[[int], Degrees] | None = None
    make: Callable[[DiT, Cell, Team], Way] = ours
    absent: Callable[[DiT, Cell], str | None] = lambda *_: None
    is_optional: bool = False
    cache: Cache = None

    def calls(self, ranks: int) -> int:
        """Return images or network calls per turn."""
        return ranks if self.where == "every" else 1

    def build(self, model: DiT, cell: Cell, team: Team) -> Way:
        """Build it in a process."""
        return Ours(model, cell, team, cache=self.cache) if self.cache is not None else self.make(model, cell, team)

    def fault(self, cell: Cell, config: DiTConfig, *, ranks: int) -> str | None:
        """Return why its degrees or cache do not fit a cell; None if they do."""
        if self.cache is not None:
            first = 1 if isinstance(self.cache, training.FirstBlock) else self.cache.warmup_steps
            few = f"images of {cell.steps} step(s), of which the first {first} run all blocks"
            return few if cell.steps <= first else None
        if self.degrees is None:
            return None
        degrees = self.degrees(ranks)
        if degrees.size != ranks:
            return f"{degrees} are not the {ranks} ranks"
        branches = 2 if cell.guidance != 1 else 1
        work = Work.of(config, shards=[1], branches=branches)
        try:
            least(work, ranks=ranks, ranks_a_node=ranks, fixed=asdict(degrees))
        except UserError as error:
            return str(error).splitlines()[1].rpartition(": ")[2]
        return None


BASE, WHOLE, CEILING, DIFFUSERS = "one-rank", "all-cores", "side-by-side", "diffusers"
CONTENDERS = (
    Contender(
        name=BASE,
        what="one rank with the cores of one rank, the others asleep: what speed-ups are over",
        where="first",
    ),
    Contender(
        name=WHOLE,
        what="one process with the cores of all ranks: what would be started otherwise",
        where="alone",
    ),
    Contender(
        name=CEILING,
        what="every rank an image of its own at the same time, nothing exchanged: what the machine gives so many processes",
        where="every",
    ),
    Contender(
        name="cfg",
        what="the two branches of guidance at once; of more than two ranks, tokens in shared memory in each branch; what ranks "
        "of a node put together in memory is not sent, and not counted as sent",
        where="ranks",
        degrees=lambda ranks: Degrees(cfg=2, shared=max(1, ranks // 2)),
    ),
    Contender(
        name="shared-kv",
        what="tokens cut, keys and values written once where all read them; likewise not counted as sent",
        where="ranks",
        degrees=lambda ranks: Degrees(shared=ranks),
    ),
    Contender(
        name="ulysses",
        what="tokens cut, by messages: each rank has all tokens for some heads while attention is made; what a rank hands itself "
        "is counted with what it sends",
        where="ranks",
        degrees=lambda ranks: Degrees(ulysses=ranks),
    ),
    Contender(
        name="ring",
        what="tokens cut, by messages: keys and values are passed on; rounds otherwise than one rank",
        where="ranks",
        degrees=lambda ranks: Degrees(ring=ranks),
    ),
    Contender(
        name=DIFFUSERS,
        what="diffusers' DiTPipeline with the same weights, one process with the cores of all ranks",
        where="alone",
        make=of_diffusers,
        absent=theirs.absent,
        is_optional=True,
    ),
    Contender(
        name="taylor-3",
        what="one rank, another image: blocks run at every third of its steps; in between, what they add is extrapolated",
        where="first",
        cache=training.Taylor(kind="taylor", interval=3, order=1),
    ),
    Contender(
        name="first-block",
        what="one rank, another image: the first block runs at every step, the others where what that adds has changed by 5 %",
        where="first",
        cache=training.FirstBlock(kind="first-block"),
    ),
)


def named(names: Sequence[str]) -> list[Contender]:
    """Return the contenders of these names in table order."""
    return [contender for contender in CONTENDERS if contender.name in names]
