"""Assignment of a node's cores to ranks for computation and for data movement, as a pure function of the machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, groupby
from typing import TypeVar

from dithc.core.logging import user_error
from dithc.engine.hardware.machine import Core, Machine

# Reserving a core must cost little compute. The machine of the paper reserves 2 of a cluster's 38 cores, 1 in 19. So a
# rank reserves one core per 19 cores, in this order, and none with fewer.
CORES_PER_RESERVED = 19
RESERVED_ORDER = ("communication", "load", "offload")
# Ranks keep to dies if the smallest share is at least this fraction of the largest, because all wait for the slowest.
MIN_SHARE = 0.75
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """Cores of one rank of a node.

    Attributes:
        cores: indices into `Machine.cores` of all cores that the rank may use.
        cpus: logical CPUs of these cores that this process may use.
        compute: cores for compute threads.
        reserved: purpose (communication, load, offload) and core, for each core without compute threads.
        pin: `apply` binds the rank to `cpus` if true, and keeps its placement otherwise.
        clusters: `compute` grouped by the core cluster of the machine, in order.
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
    """Plan of a node: one `RankPlan` per rank, and the reasons for unusual choices."""

    ranks: tuple[RankPlan, ...]
    reasons: tuple[str, ...]


def plan_cores(
    machine: Machine, *, ranks_per_node: int, cpus_per_rank: int | None = None, own_mask: bool = False
) -> CorePlan:
    """Divide the cores of this process among the ranks of a node, with neighbors together.

    A rank gets complete dies, or its part of a die, if dies and ranks divide evenly and shares are nearly equal. Cores
    are reserved from the rank's largest core clusters to keep these equal. A rank with a spare core per cluster
    reserves in every cluster, at most one core per purpose there; other ranks reserve one core per purpose, as far as
    possible.

    Ranks are bound only if they fill all allowed cores: otherwise another job may share the node and would be bound to
    the same cores. With `own_mask`, ranks have disjoint masks, as srun sets them. The cores of this rank's mask are
    then its share, and the plan is valid only for this rank. `cpus_per_rank` is the number of threads that the launcher
    requested; None shares all cores.

    Raises:
        UserError: ranks or CPUs are below one.
    """
    for name, value in (("ranks_per_node", ranks_per_node), ("cpus_per_rank", cpus_per_rank)):
        if value is not None and value < 1:
            raise user_error(f"core plan: {name}", got=value, expected="1 or more", fix=f"correct {name}")
    cores = machine.visible_cores
    if own_mask and ranks_per_node > 1 and _floating_reason(machine, cores, 1, None) is None:
        return _bound_plan(machine, [cores] * ranks_per_node, ["each rank has a separate mask, which is its share"])
    floating = _floating_reason(machine, cores, ranks_per_node, cpus_per_rank)
    if floating:
        return _floating_plan(machine, cores, ranks_per_node, cpus_per_rank, reason=floating)
    shares, reasons = _shares(cores, ranks_per_node)
    if count := len(machine.slower_cores):
        reasons.append(f"{count} core(s) are slower than the other cores: equal shares wait for them")
    return _bound_plan(machine, shares, reasons)


def _bound_plan(machine: Machine, shares: Sequence[Sequence[Core]], reasons: Sequence[str]) -> CorePlan:
    """Bind ranks to their shares. Each share reserves cores if it has enough."""
    purposes = RESERVED_ORDER if len({tier.kind for tier in machine.tiers}) > 1 else RESERVED_ORDER[:2]
    reserved = [_reserved(share, purposes) for share in shares]
    fewest = min(range(len(shares)), key=lambda rank: len(reserved[rank]))
    notes = [*reasons]
    if missing := purposes[len(reserved[fewest]) :]:
        notes.append(
            f"no core reserved for {', '.join(missing)}: a rank has {len(shares[fewest])} core(s) "
            f"and reserves one per {CORES_PER_RESERVED}"
        )
    allowed = set(machine.limits.allowed_cpus)
    ranks = []
    for rank, (share, free) in enumerate(zip(shares, reserved, strict=True)):
        cpus = tuple(sorted(cpu for core in share for cpu in core.cpus if cpu in allowed))
        ranks.append(_rank(rank, share, cpus, reserved=free))
    return CorePlan(ranks=tuple(ranks), reasons=tuple(notes))


def _floating_reason(machine: Machine, cores: Sequence[Core], ranks: int, cpus_per_rank: int | None) -> str | None:
    """Return the reason why ranks are not bound to cores of the plan, or None."""
    num_cpus, quota = len(machine.limits.allowed_cpus), machine.limits.cpu_quota
    requested = ranks * (cpus_per_rank or 1)
    if requested > num_cpus:
        return (
            f"{ranks} rank(s) x {cpus_per_rank or 1} CPU(s) against {num_cpus} allowed CPU(s): the launcher has bound "
            "each rank, or the ranks must share cores; placement is unchanged"
        )
    if ranks > len(cores):
        return f"{ranks} ranks share {len(cores)} core(s); placement is left to the operating system"
    if quota is not None and quota < num_cpus:
        return f"the control group allows {quota:g} CPU(s) of time on {num_cpus} CPUs; placement is left to the system"
    if cpus_per_rank is not None and requested < len(cores):
        return (
            f"{ranks} rank(s) x {cpus_per_rank} CPU(s) leave {len(cores) - requested} core(s) to other jobs; "
            "placement is left to the operating system"
        )
    return None


def _floating_plan(
    machine: Machine, cores: Sequence[Core], ranks: int, cpus_per_rank: int | None, *, reason: str
) -> CorePlan:
    quota = machine.limits.cpu_quota
    usable = len(cores) if quota is None else max(1, min(len(cores), int(quota)))
    num_threads = min(cpus_per_rank, usable) if cpus_per_rank else max(1, usable // ranks)
    shared = _rank(0, cores, machine.limits.allowed_cpus, num_threads=num_threads, pin=False)
    rank_plans = tuple(replace(shared, rank=rank) for rank in range(ranks))
    return CorePlan(ranks=rank_plans, reasons=(reason, "no core reserved: ranks are not bound to cores"))


def _shares(cores: Sequence[Core], ranks: int) -> tuple[list[list[Core]], list[str]]:
    dies = [list(members) for _, members in groupby(cores, key=lambda core: core.die)]
    if ranks % len(dies) == 0:
        shares = [share for die in dies for share in _cut_by_cluster(die, ranks // len(dies))]
    elif len(dies) % ranks == 0:
        shares = _join(dies, ranks)
    else:
        shares = _cut(cores, ranks)
    reasons = []
    if min(map(len, shares)) < MIN_SHARE * max(map(len, shares)) and shares != _cut(cores, ranks):
        shares = _cut(cores, ranks)
        reasons.append("the dies have different numbers of usable cores: ranks get equal shares across dies")
    for rank, share in enumerate(shares):
        if len({core.socket for core in share}) > 1:
            reasons.append(f"rank {rank} spans several sockets: start more ranks per node")
        elif len({core.die for core in share}) > 1:
            reasons.append(f"rank {rank} spans several dies: start one rank per die")
    return shares, reasons


def _cut_by_cluster(die: Sequence[Core], ranks: int) -> list[list[Core]]:
    """Divide the cores of a die among its ranks, by complete core clusters if these give nearly equal shares."""
    clusters = [list(members) for _, members in groupby(die, key=lambda core: core.cluster)]
    if len(clusters) % ranks == 0:
        shares = _join(clusters, ranks)
        if min(map(len, shares)) >= MIN_SHARE * max(map(len, shares)):
            return shares
    return _cut(die, ranks)


def _join(groups: Sequence[Sequence[Core]], ranks: int) -> list[list[Core]]:
    """Join complete groups, the same number for each rank; their number must be a multiple of the ranks."""
    return [list(chain.from_iterable(joined)) for joined in _cut(groups, ranks)]


def _cut(parts: Sequence[T], ranks: int) -> list[list[T]]:
    return [list(parts[rank * len(parts) // ranks : (rank + 1) * len(parts) // ranks]) for rank in range(ranks)]


def _reserved(share: Sequence[Core], purposes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return (purpose, core) of reserved cores, as many as keep the rank's clusters most equal."""
    clusters = [[core.index for core in members] for _, members in groupby(share, key=lambda core: core.cluster)]
    spare = len(share) // CORES_PER_RESERVED
    if spare < len(clusters):
        _, removed = _remove_cores(clusters, min(spare, len(purposes)))
    else:
        fewest = len(clusters) * min(spare // len(clusters), len(purposes))
        largest = min(spare, len(clusters) * len(purposes))
        cuts = (_remove_cores(clusters, number) for number in range(fewest, largest + 1))
        _, removed = min(cuts, key=lambda cut: (cut[0], len(cut[1])))
    return tuple(zip(cycle(purposes), removed, strict=False))


def _remove_cores(clusters: Sequence[Sequence[int]], number: int) -> tuple[int, list[int]]:
    """Take the last core of the largest cluster `number` times; return the imbalance and the cores."""
    remaining = [list(cluster) for cluster in clusters]
    removed = sorted(max(reversed(remaining), key=len).pop() for _ in range(number))
    return max(map(len, remaining)) - min(map(len, remaining)), removed


def _rank(
    rank: int,
    share: Sequence[Core],
    cpus: tuple[int, ...],
    *,
    reserved: Sequence[tuple[str, int]] = (),
    num_threads: int | None = None,
    pin: bool = True,
) -> RankPlan:
    free = {core for _, core in reserved}
    compute = [core for core in share if core.index not in free]
    return RankPlan(
        rank=rank,
        cores=tuple(core.index for core in share),
        cpus=cpus,
        compute=tuple(core.index for core in compute),
        reserved=tuple(reserved),
        num_threads=num_threads or len(compute),
        pin=pin,
        clusters=tuple(
            tuple(core.index for core in cores) for _, cores in groupby(compute, key=lambda core: core.cluster)
        ),
    )
