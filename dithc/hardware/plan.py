"""Which cores each rank of a node computes on, and which it leaves free to move data: a pure function of the machine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain, cycle, groupby
from typing import Any

from dithc.hardware.machine import Core, Machine
from dithc.log import problem

# A core taken from compute must cost little. The machine of the paper leaves 2 of a cluster's 38 cores free, 1 in 19:
# so a rank gives up one core for every 19 it has, in this order, and none below.
CORES_PER_RESERVED = 19
RESERVED_ORDER = ("communication", "load", "offload")
# Ranks keep to dies where the smallest share is at least this part of the largest: all wait for the slowest rank.
LEAST_SHARE = 0.75


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """The cores of one rank of a node.

    Attributes:
        rank: rank within the node.
        cores: indices into `Machine.cores`, all that the rank may run on.
        cpus: the logical CPUs of those cores that this process is allowed to use.
        compute: cores for compute threads.
        reserved: purpose (communication, load, offload) and core, for what is left free of compute threads.
        num_threads: compute threads the rank should start.
        pin: whether `apply` binds the rank to `cpus`; otherwise placement is left as it is.
        clusters: `compute` again, grouped by the cluster of the machine that each core belongs to, in order.
    """

    rank: int
    cores: tuple[int, ...]
    cpus: tuple[int, ...]
    compute: tuple[int, ...]
    reserved: tuple[tuple[str, int], ...]
    num_threads: int
    pin: bool
    clusters: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CorePlan:
    """The plan of a node: one `RankPlan` per rank, and the reasons for what is not as one might expect."""

    ranks: tuple[RankPlan, ...]
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain lists and numbers, ready for JSON."""
        return asdict(self)


def plan(
    machine: Machine, *, ranks_per_node: int, cpus_per_rank: int | None = None, own_mask: bool = False
) -> CorePlan:
    """Divide the cores of this process among the ranks of a node, with neighbors together.

    A rank gets whole dies, or its part of one, where dies and ranks divide and shares are nearly equal. Cores are reserved
    from the rank's largest clusters to keep these equal. A rank with a spare core per cluster reserves in every one, at most
    one core per purpose there; other ranks reserve one core per purpose, as far as possible.

    Ranks are bound only if they fill all allowed cores: otherwise another job may share the node and would be bound to the
    same cores. With `own_mask`, ranks have disjoint masks, as srun sets them. The cores of this rank's mask are then its
    share, and the plan holds for this rank alone. `cpus_per_rank` are the threads that the launcher requested; None shares
    all cores.

    Raises UserError for ranks or CPUs below one.
    """
    for name, value in (("ranks_per_node", ranks_per_node), ("cpus_per_rank", cpus_per_rank)):
        if value is not None and value < 1:
            raise problem(f"core plan: {name}", got=value, expected="1 or more", fix=f"correct {name}")
    cores = machine.visible_cores
    if own_mask and ranks_per_node > 1 and _reason_to_float(machine, cores, 1, None) is None:
        return _planned(machine, [cores] * ranks_per_node, ["each rank has a mask of its own: that is its share"])
    floating = _reason_to_float(machine, cores, ranks_per_node, cpus_per_rank)
    if floating:
        return _floating_plan(machine, cores, ranks_per_node, cpus_per_rank, reason=floating)
    shares, reasons = _shares(cores, ranks_per_node)
    if machine.slower_cores:
        reasons.append(f"{len(machine.slower_cores)} core(s) are slower than the others: equal shares wait for them")
    return _planned(machine, shares, reasons)


def _planned(machine: Machine, shares: Sequence[Sequence[Core]], reasons: Sequence[str]) -> CorePlan:
    """Ranks bound to their shares, each of which leaves cores free where it has enough."""
    purposes = RESERVED_ORDER if len({tier.kind for tier in machine.tiers}) > 1 else RESERVED_ORDER[:2]
    reserved = [_reserved(share, purposes) for share in shares]
    fewest = min(range(len(shares)), key=lambda rank: len(reserved[rank]))
    said = [*reasons]
    if missing := purposes[len(reserved[fewest]) :]:
        said.append(
            f"no core reserved for {', '.join(missing)}: a rank has {len(shares[fewest])} core(s) "
            f"and gives up one per {CORES_PER_RESERVED}"
        )
    ranks = tuple(
        _pinned_rank(machine, rank, share, free)
        for rank, (share, free) in enumerate(zip(shares, reserved, strict=True))
    )
    return CorePlan(ranks=ranks, reasons=tuple(said))


def _reason_to_float(machine: Machine, cores: Sequence[Core], ranks: int, cpus_per_rank: int | None) -> str | None:
    """Why ranks are not bound to cores of the plan, or None where they are."""
    num_cpus, quota = len(machine.limits.allowed_cpus), machine.limits.cpu_quota
    wanted = ranks * (cpus_per_rank or 1)
    if wanted > num_cpus:
        return (
            f"{ranks} rank(s) x {cpus_per_rank or 1} CPU(s) against {num_cpus} allowed CPU(s): the launcher has bound "
            "each rank, or the ranks must share cores; placement is left as it is"
        )
    if ranks > len(cores):
        return f"{ranks} ranks share {len(cores)} core(s); placement is left to the operating system"
    if quota is not None and quota < num_cpus:
        return f"the control group gives {quota:g} CPU(s) of time on {num_cpus} CPUs; placement is left to the system"
    if cpus_per_rank is not None and wanted < len(cores):
        return (
            f"{ranks} rank(s) x {cpus_per_rank} CPU(s) leave {len(cores) - wanted} core(s) to other jobs; "
            "placement is left to the operating system"
        )
    return None


def _floating_plan(
    machine: Machine, cores: Sequence[Core], ranks: int, cpus_per_rank: int | None, *, reason: str
) -> CorePlan:
    quota = machine.limits.cpu_quota
    usable = len(cores) if quota is None else max(1, min(len(cores), int(quota)))
    num_threads = min(cpus_per_rank, usable) if cpus_per_rank else max(1, usable // ranks)
    everywhere = tuple(core.index for core in cores)
    rank_plans = tuple(
        RankPlan(
            rank=rank,
            cores=everywhere,
            cpus=machine.limits.allowed_cpus,
            compute=everywhere,
            reserved=(),
            num_threads=num_threads,
            pin=False,
            clusters=_by_cluster(cores),
        )
        for rank in range(ranks)
    )
    return CorePlan(ranks=rank_plans, reasons=(reason, "no core reserved: ranks are not bound to cores"))


def _shares(cores: Sequence[Core], ranks: int) -> tuple[list[list[Core]], list[str]]:
    """The cores of each rank, and what is unusual about them."""
    dies = [list(members) for _, members in groupby(cores, key=lambda core: core.die)]
    if ranks % len(dies) == 0:
        shares = [share for die in dies for share in _cut_by_cluster(die, ranks // len(dies))]
    elif len(dies) % ranks == 0:
        shares = _joined(dies, ranks)
    else:
        shares = _cut(cores, ranks)
    reasons = []
    if min(map(len, shares)) < LEAST_SHARE * max(map(len, shares)) and shares != _cut(cores, ranks):
        shares = _cut(cores, ranks)
        reasons.append("the dies have different numbers of cores to use: ranks are cut evenly, across dies")
    for rank, share in enumerate(shares):
        if len({core.socket for core in share}) > 1:
            reasons.append(f"rank {rank} spans several sockets: start more ranks per node")
        elif len({core.die for core in share}) > 1:
            reasons.append(f"rank {rank} spans several dies: start one rank per die")
    return shares, reasons


def _cut_by_cluster(die: Sequence[Core], ranks: int) -> list[list[Core]]:
    """The cores of a die cut among its ranks: whole clusters where these divide and are nearly equal."""
    clusters = [list(members) for _, members in groupby(die, key=lambda core: core.cluster)]
    if len(clusters) % ranks == 0:
        shares = _joined(clusters, ranks)
        if min(map(len, shares)) >= LEAST_SHARE * max(map(len, shares)):
            return shares
    return _cut(die, ranks)


def _joined(groups: Sequence[Sequence[Core]], ranks: int) -> list[list[Core]]:
    """Whole groups, as many for each rank; their number divides by that of the ranks."""
    each = len(groups) // ranks
    return [list(chain.from_iterable(groups[rank * each : (rank + 1) * each])) for rank in range(ranks)]


def _cut(cores: Sequence[Core], ranks: int) -> list[list[Core]]:
    return [list(cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]) for rank in range(ranks)]


def _reserved(share: Sequence[Core], purposes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """(purpose, core) of what a rank leaves free, purposes in turn; the number with which its clusters are most equal."""
    clusters = [[core.index for core in members] for _, members in groupby(share, key=lambda core: core.cluster)]
    spare = len(share) // CORES_PER_RESERVED
    if spare < len(clusters):
        _, taken = _taken(clusters, min(spare, len(purposes)))
    else:
        fewest = len(clusters) * min(spare // len(clusters), len(purposes))
        most = min(spare, len(clusters) * len(purposes))
        cuts = (_taken(clusters, number) for number in range(fewest, most + 1))
        _, taken = min(cuts, key=lambda cut: (cut[0], len(cut[1])))
    return tuple(zip(cycle(purposes), taken, strict=False))


def _taken(clusters: Sequence[Sequence[int]], number: int) -> tuple[int, list[int]]:
    """How unequal clusters are once the last core of the largest, later clusters first, is taken `number` times; and these."""
    left = [list(cluster) for cluster in clusters]
    taken = sorted(max(reversed(left), key=len).pop() for _ in range(number))
    return max(map(len, left)) - min(map(len, left)), taken


def _pinned_rank(machine: Machine, rank: int, share: Sequence[Core], reserved: Sequence[tuple[str, int]]) -> RankPlan:
    allowed, free = set(machine.limits.allowed_cpus), {core for _, core in reserved}
    compute = [core for core in share if core.index not in free]
    return RankPlan(
        rank=rank,
        cores=tuple(core.index for core in share),
        cpus=tuple(sorted(cpu for core in share for cpu in core.cpus if cpu in allowed)),
        compute=tuple(core.index for core in compute),
        reserved=tuple(reserved),
        num_threads=len(compute),
        pin=True,
        clusters=_by_cluster(compute),
    )


def _by_cluster(cores: Sequence[Core]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(core.index for core in members) for _, members in groupby(cores, key=lambda core: core.cluster))
