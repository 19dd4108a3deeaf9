"""Which cores each rank of a node computes on, and which it leaves free to move data: planned purely, then applied."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dithc.hardware.machine import Core, Machine
from dithc.log import logger, problem

log = logger(__name__)

# A core taken from compute must cost little. The machine of the paper leaves 2 of a cluster's 38 cores free, 1 in 19:
# so a rank gives up one core for every 19 it has, in this order, and none below.
CORES_PER_RESERVED = 19
RESERVED_ORDER = ("communication", "load", "offload")


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
    """

    rank: int
    cores: tuple[int, ...]
    cpus: tuple[int, ...]
    compute: tuple[int, ...]
    reserved: tuple[tuple[str, int], ...]
    num_threads: int
    pin: bool


@dataclass(frozen=True, kw_only=True)
class CorePlan:
    """The plan of a node: one `RankPlan` per rank, and the reasons for what is not as one might expect."""

    ranks: tuple[RankPlan, ...]
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain lists and numbers, ready for JSON."""
        return asdict(self)


def plan(machine: Machine, *, ranks_per_node: int, cpus_per_rank: int | None = None) -> CorePlan:
    """Cuts the cores this process may use among the ranks of a node, neighbours staying together.

    Ranks are bound to cores only where they fill all that is allowed: with fewer, another job may share the node and
    would be bound to the same cores. Where the launcher has given this rank a mask of its own, that mask is its plan.

    Args:
        machine: the node as this rank sees it.
        ranks_per_node: ranks started on the node.
        cpus_per_rank: threads the launcher was asked for per rank; None shares all cores.

    Raises:
        UserError: ranks or CPUs below one.
    """
    for name, value in (("ranks_per_node", ranks_per_node), ("cpus_per_rank", cpus_per_rank)):
        if value is not None and value < 1:
            raise problem(f"core plan: {name}", got=value, expected="1 or more", remedy=f"correct {name}")
    cores = machine.visible_cores
    floating = _reason_to_float(machine, cores, ranks_per_node, cpus_per_rank)
    if floating:
        return _floating_plan(machine, cores, ranks_per_node, cpus_per_rank, reason=floating)
    shares = [
        cores[rank * len(cores) // ranks_per_node : (rank + 1) * len(cores) // ranks_per_node]
        for rank in range(ranks_per_node)
    ]
    reasons: list[str] = []
    purposes = RESERVED_ORDER if machine.memory_only_nodes else RESERVED_ORDER[:2]
    num_reserved = min(len(share) for share in shares) // CORES_PER_RESERVED
    if num_reserved < len(purposes):
        reasons.append(
            f"no core reserved for {', '.join(purposes[num_reserved:])}: a rank has {min(map(len, shares))} core(s) "
            f"and gives up one per {CORES_PER_RESERVED}"
        )
    for rank, share in enumerate(shares):
        if len({core.socket for core in share}) > 1:
            reasons.append(f"rank {rank} spans several sockets: start more ranks per node")
    ranks = tuple(_pinned_rank(machine, rank, share, purposes[:num_reserved]) for rank, share in enumerate(shares))
    return CorePlan(ranks=ranks, reasons=tuple(reasons))


def apply(rank_plan: RankPlan) -> int:
    """Binds this process, with every thread it has, to its planned CPUs, unless it is placed already.

    Returns:
        The number of compute threads to start.
    """
    wanted, current = set(rank_plan.cpus), os.sched_getaffinity(0)
    if not rank_plan.pin or current == wanted:
        return rank_plan.num_threads
    if not wanted <= current:
        log.warning("cores: launcher allows CPUs %s, plan wanted %s; left as is", sorted(current), sorted(wanted))
        return min(rank_plan.num_threads, len(current))
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), wanted)
    log.info("cores: bound to CPUs %s, %d compute thread(s)", sorted(wanted), rank_plan.num_threads)
    return rank_plan.num_threads


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
        )
        for rank in range(ranks)
    )
    return CorePlan(ranks=rank_plans, reasons=(reason, "no core reserved: ranks are not bound to cores"))


def _pinned_rank(machine: Machine, rank: int, share: Sequence[Core], purposes: Sequence[str]) -> RankPlan:
    allowed = set(machine.limits.allowed_cpus)
    num_compute = len(share) - len(purposes)
    return RankPlan(
        rank=rank,
        cores=tuple(core.index for core in share),
        cpus=tuple(sorted(cpu for core in share for cpu in core.cpus if cpu in allowed)),
        compute=tuple(core.index for core in share[:num_compute]),
        reserved=tuple((purpose, core.index) for purpose, core in zip(purposes, share[num_compute:], strict=True)),
        num_threads=num_compute,
        pin=True,
    )
