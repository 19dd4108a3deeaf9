"""How a sampling is cut among ranks: degrees, which of them go together, and the groups of ranks that make a shard each.

Legend: R ranks of the run; T tokens of an image, H heads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product

from dithc.log import problem
from dithc.parallel.ranks import cut


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """How many ranks share what of a shard; their product is the size of the group that makes it.

    Attributes:
        data: share its images, and exchange nothing until these are made.
        cfg: 2 where the two branches of guidance are made at once.
        windows: share those of a scene at each step.
        shared: share the tokens of an image on one node, by keys and values in memory that all see.
        ulysses: share them by messages, each with all tokens for some heads while attention is made.
        ring: share them in sets of `ulysses` ranks that pass keys and values on; rounds otherwise than one rank.
    """

    data: int = 1
    cfg: int = 1
    shared: int = 1
    ulysses: int = 1
    ring: int = 1
    windows: int = 1

    @property
    def rows(self) -> int:
        """Ranks that share the rows of a call of the network: branches of guidance, windows of a scene."""
        return self.cfg * self.windows

    @property
    def tokens(self) -> int:
        """Ranks that share the tokens of an image."""
        return self.shared * self.ulysses * self.ring

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return self.data * self.rows * self.tokens

    def __str__(self) -> str:
        said = [f"{field.name} {getattr(self, field.name)}" for field in fields(self) if getattr(self, field.name) > 1]
        return " x ".join(said) or "one rank"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be sampled.

    Attributes:
        shards: the number of images of each.
        branches: 2 with guidance, else 1.
        tokens: T.
        heads: H; 0 where there is no network.
        windows: of a scene at a step; 1 for images of the network's own size.
    """

    shards: Sequence[int]
    branches: int = 1
    tokens: int = 1
    heads: int = 0
    windows: int = 1


def fault(degrees: Degrees, work: Work, *, ranks: int, ranks_a_node: int) -> str | None:
    """Why degrees do not serve some work; None where they do."""
    most = max(work.shards, default=1)
    if degrees.size > ranks:
        return f"{degrees.size} ranks, and there are {ranks}"
    if degrees.data > most:
        return f"{degrees.data} ranks for the {most} images of a shard"
    if degrees.cfg > work.branches:
        return "there is no guidance, so one branch alone"
    if degrees.windows > work.windows:
        return f"{degrees.windows} ranks for {work.windows} windows of a scene"
    if degrees.tokens > work.tokens:
        return f"{degrees.tokens} ranks for {work.tokens} tokens"
    if degrees.tokens > 1 and work.heads == 0:
        return "there is no network whose tokens could be cut"
    if degrees.shared > 1 and degrees.ulysses * degrees.ring > 1:
        return "tokens go through shared memory, or by messages"
    if degrees.shared > ranks_a_node or ranks_a_node % degrees.shared:
        return f"{degrees.shared} ranks do not fit whole times into the {ranks_a_node} of a node"
    if degrees.ulysses > 1 and work.heads % degrees.ulysses:
        return f"{work.heads} heads are no multiple of {degrees.ulysses}"
    return None


def candidates(ranks: int, *, windows: int = 1) -> Iterator[Degrees]:
    """All degrees of groups of at most so many ranks, and so many for windows, whose tokens are shared in memory, if at all."""
    for cfg, tokens in product((1, 2), range(1, ranks + 1)):
        for of_scene in range(1, min(windows, ranks // (cfg * tokens)) + 1):
            for data in range(1, ranks // (cfg * tokens * of_scene) + 1):
                yield Degrees(data=data, cfg=cfg, shared=tokens, windows=of_scene)


# What exchanging costs, as a share of the work: of two branches at a step; of tokens at every block, for each rank more.
OF_BRANCHES, OF_TOKENS = 0.01, 0.02


def rounds(degrees: Degrees, work: Work, *, ranks: int) -> float:
    """Time of the busiest group, in units of an image of one branch on one rank."""
    groups = ranks // degrees.size
    of_shard = [-(-images // degrees.data) for images in work.shards]
    busiest = max(sum(of_shard[group::groups]) for group in range(min(groups, max(1, len(of_shard)))))
    exchange = (1 + OF_BRANCHES * (degrees.rows > 1)) * (1 + OF_TOKENS * (degrees.tokens - 1))
    of_image = work.branches * work.windows  # rows of the network's batches
    rows = -(-of_image // min(degrees.rows, of_image)) / work.windows
    return busiest * rows * max(cut(work.tokens, degrees.tokens)) / work.tokens * exchange


def groups_of(degrees: Degrees, *, ranks: int) -> list[list[int]]:
    """The ranks of each group; those that are left over are in none."""
    return [list(range(at, at + degrees.size)) for at in range(0, ranks - degrees.size + 1, degrees.size)]


def least(work: Work, *, ranks: int, ranks_a_node: int, fixed: dict[str, int] | None = None) -> Degrees:
    """The degrees whose busiest group is done first; of those alike the ones that exchange least, in the smallest groups.

    Args:
        work: what is to be sampled.
        ranks: R.
        ranks_a_node: on each node.
        fixed: degrees that are given.

    Raises:
        UserError: none with the given degrees is possible; the message says why.
    """
    fixed, best = fixed or {}, None
    if {"ulysses", "ring"} & {name for name, degree in fixed.items() if degree > 1}:
        wanted: Iterator[Degrees] = (
            Degrees(**{"data": data, "cfg": cfg, "windows": windows, **fixed})
            for data, cfg in product(range(1, ranks + 1), (1, 2))
            for windows in range(1, min(work.windows, ranks) + 1)
        )
    else:
        wanted = candidates(ranks, windows=work.windows)
    for degrees in wanted:
        if any(getattr(degrees, name) != degree for name, degree in fixed.items()):
            continue
        if fault(degrees, work, ranks=ranks, ranks_a_node=ranks_a_node) is not None:
            continue
        cost = rounds(degrees, work, ranks=ranks), degrees.tokens, degrees.rows, degrees.size
        if best is None or cost < best[0]:
            best = cost, degrees
    if best is None:
        why = fault(Degrees(**fixed), work, ranks=ranks, ranks_a_node=ranks_a_node)
        said = ", ".join(f"{name} {degree}" for name, degree in fixed.items()) or "no degrees"
        raise problem(
            "machine.sampling",
            got=f"{said}: {why}",
            expected=f"degrees of at most {ranks} ranks, {ranks_a_node} a node, that fit the work",
            remedy="leave a degree out (auto), or start another number of ranks",
        )
    return best[1]
