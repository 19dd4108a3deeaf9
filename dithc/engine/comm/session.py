"""Set-up of a process on several ranks: connection, core binding, thread counts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from dithc.core import openmp
from dithc.core.logging import get_logger, user_error
from dithc.engine.comm.environment import EXPECTED_RANKS_VARIABLE
from dithc.engine.comm.group import Group, connect_ranks
from dithc.engine.comm.settings import CommConfig
from dithc.engine.hardware import Machine, RankPlan, affinity, discover_machine, plan_cores

THREADS_VARIABLE = "OMP_NUM_THREADS"
MAX_THREADS = 4096  # limit of a kernel context
log = get_logger("dithc.cores")


@contextmanager
def init_distributed(
    expected: int | None = None,
    *,
    config: CommConfig | None = None,
    cpus_per_rank: int | None = None,
    timeout_seconds: float | None = None,
) -> Iterator[Group]:
    """Connect the ranks, bind this rank to its cores and set its threads.

    `dithc launch` sets the threads per rank (OMP_NUM_THREADS), which is then also the number of cores of the rank. A
    rank that was started by hand uses `cpus_per_rank`, or its share of all cores. If the plan reserves a core for
    communication, only the communication threads run on it. Reserved cores have no compute threads unless the user set
    OMP_NUM_THREADS. A process without a launcher is a single rank.

        with comm.init_distributed() as group:  # python my.py, or: dithc launch --ranks 2 -- python my.py
            print(f"rank {group.rank} of {group.size}")

    Args:
        expected: required number of ranks; None accepts the announced number.
        config: settings of the exchange between ranks; None for the active settings.
        cpus_per_rank: cores per rank if no launcher specifies them.
        timeout_seconds: time after which a rank stops waiting for another; None for the default of `connect_ranks`.

    Raises:
        UserError: the number of started ranks differs from the expected number.
    """
    import torch

    openmp.report()
    with (config or CommConfig.current()).active(), connect_ranks(expected, timeout_seconds=timeout_seconds) as group:
        if group.is_nested:
            yield group
            return
        requested = _requested_threads()
        launched = requested if EXPECTED_RANKS_VARIABLE in os.environ else None
        machine = discover_machine()
        masks = _node_masks(group, machine.limits.allowed_cpus)
        are_disjoint = sum(map(len, masks)) == len(set[int]().union(*masks))
        num_cpus = launched or cpus_per_rank
        cores = plan_cores(machine, ranks_per_node=group.local_size, cpus_per_rank=num_cpus, own_mask=are_disjoint)
        for reason in cores.reasons:
            log.info(reason)
        plan, communication = _split_communication(cores.ranks[group.local_rank], machine)
        cpus = os.sched_getaffinity(0)
        threads = affinity.apply(plan)
        if requested is not None and not (launched and plan.reserved):
            threads = _num_threads(requested, plan, machine, launched=launched is not None)
        torch.set_num_threads(threads)
        openmp.unbind_team()
        if communication:
            group.bind_communication_threads(communication[0])
        elif group.size > 1:
            log.info("no core is reserved for the communication threads: they run on any core of the rank")
        check = partial(affinity.verify, plan, num_threads=threads, cores=machine.cores, communication=communication)
        check(gather=partial(_node_masks, group))
        _agree_on_kernels(group)
        try:
            yield group
            # All threads exist by now, and a library that was loaded since may have changed their binding.
            check()
        finally:
            affinity.rebind(os.sched_getaffinity(0), cpus)


def _agree_on_kernels(group: Group) -> None:
    """Use the instruction set of rank 0 in all ranks; if a CPU lacks it, use the best set that all ranks support.

    Kernels of different sets round differently, and ranks compare and exchange results that must have equal bits.
    """
    from dithc.engine import native  # with torch, which launchers need not import
    from dithc.engine.native import instruction_sets, loading

    if group.rank == 0:
        instruction_sets.check_rates()
    supported = group.gather_objects(loading.supported_isas())
    chosen = group.broadcast_object(native.instruction_set() if group.rank == 0 else None)
    common = [isa for isa in supported[0] if all(isa in names for names in supported)]
    if chosen in common:
        instruction_sets.pin(chosen, "the choice of rank 0", of_all_ranks=common)
    elif common:
        instruction_sets.pin(common[-1], f"the best that all {group.size} ranks support", of_all_ranks=common)


def _requested_threads() -> int | None:
    """Return OMP_NUM_THREADS; None if it is unset or a list for nested parallelism, which dithc does not use."""
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text or "," in text:
        return None
    requested = int(text) if text.isascii() and text.isdigit() and len(text) < len(str(MAX_THREADS)) + 1 else 0
    if not 1 <= requested <= MAX_THREADS:
        raise user_error(
            f"environment variable {THREADS_VARIABLE}",
            got=repr(text[:40]),
            expected=f"a number of threads from 1 to {MAX_THREADS}",
            fix=f"set it to the cores of a rank, or unset it (`unset {THREADS_VARIABLE}`): dithc counts them itself",
        )
    return requested


def _num_threads(requested: int, plan: RankPlan, machine: Machine, *, launched: bool) -> int:
    """Return the compute threads that OMP_NUM_THREADS requests, but one per core if CPUs of a scheduler share cores."""
    cores = sum(1 for core in machine.cores if set(core.cpus) & set(plan.cpus))
    if launched and cores < requested <= len(plan.cpus):
        log.info(f"{cores} compute thread(s) per rank: its {requested} CPU(s) are {cores} core(s)")
        return cores
    log.info(f"{requested} compute thread(s) per rank, from {THREADS_VARIABLE}")
    return requested


def _split_communication(plan: RankPlan, machine: Machine) -> tuple[RankPlan, tuple[int, ...]]:
    """Return the plan without the core of the communication threads, and the CPUs of that core, or none.

    Each of several core clusters may reserve a core; the first is used and the others stay free.
    """
    reserved = next((core for purpose, core in plan.reserved if purpose == "communication"), None)
    if reserved is None or not plan.pin:
        return plan, ()
    reserved_cpus = set(machine.cores[reserved].cpus)
    communication = tuple(cpu for cpu in plan.cpus if cpu in reserved_cpus)
    return replace(plan, cpus=tuple(cpu for cpu in plan.cpus if cpu not in reserved_cpus)), communication


def _node_masks(group: Group, cpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the CPUs of every rank of this node, in the order of local ranks."""
    masks = group.gather_objects((group.node, group.local_rank, cpus))
    return [mask for _, mask in sorted((local, mask) for node, local, mask in masks if node == group.node)]
