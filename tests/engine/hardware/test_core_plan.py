"""The core plan assigns neighboring cores to every rank, or gives the reason against it."""

import os
from dataclasses import replace

import pytest

from dithc.core.logging import UserError
from dithc.engine.hardware import discover_machine, plan_cores
from dithc.engine.hardware.affinity import apply


def test_ranks_receive_disjoint_cores_covering_the_machine(two_sockets):
    machine = discover_machine(two_sockets.root)
    core_plan = plan_cores(machine, ranks_per_node=4, cpus_per_rank=40)
    cores = [core for rank in core_plan.ranks for core in rank.cores]
    assert cores == list(range(80))
    assert [rank.cpus[0] for rank in core_plan.ranks] == [0, 20, 40, 60]
    assert all(rank.pin and len(rank.cpus) == 40 for rank in core_plan.ranks)
    assert any("spans several sockets" in reason for reason in plan_cores(machine, ranks_per_node=1).reasons)


def test_no_core_is_reserved_on_small_machines_and_reason_is_listed(flat_machine):
    core_plan = plan_cores(discover_machine(flat_machine(num_cores=4).root), ranks_per_node=2)
    assert all(rank.reserved == () and rank.num_threads == 2 for rank in core_plan.ranks)
    assert "no core reserved for communication" in core_plan.reasons[0]


def test_more_ranks_than_cores_are_unpinned_and_share_cores(flat_machine):
    core_plan = plan_cores(discover_machine(flat_machine(num_cores=2).root), ranks_per_node=4)
    assert all(not rank.pin and rank.num_threads == 1 for rank in core_plan.ranks)
    assert "share" in core_plan.reasons[0]


def test_launcher_mask_is_used_as_the_plan(flat_machine):
    machine = discover_machine(flat_machine(num_cores=8, allowed="4-5").root)
    core_plan = plan_cores(machine, ranks_per_node=4, cpus_per_rank=2)
    assert all(rank.cpus == (4, 5) and rank.num_threads == 2 and not rank.pin for rank in core_plan.ranks)


def test_rank_with_separate_mask_reserves_cores_by_the_same_rule(two_sockets):
    machine = discover_machine(two_sockets.root)
    whole = plan_cores(machine, ranks_per_node=4).ranks[1]
    masked = replace(machine, limits=replace(machine.limits, allowed_cpus=whole.cpus))
    bound = plan_cores(masked, ranks_per_node=4, cpus_per_rank=len(whole.cores), own_mask=True)
    first, last = bound.ranks[0], bound.ranks[3]
    assert (first.cpus, first.compute, first.reserved, first.pin) == (whole.cpus, whole.compute, whole.reserved, True)
    assert (last.rank, last.cpus) == (3, first.cpus)
    assert "communication" in dict(first.reserved)
    assert "separate mask" in bound.reasons[0]
    assert plan_cores(masked, ranks_per_node=1, own_mask=True) == plan_cores(masked, ranks_per_node=1)
    throttled = replace(masked, limits=replace(masked.limits, cpu_quota=1.0))
    assert not plan_cores(throttled, ranks_per_node=4, own_mask=True).ranks[0].pin


def test_ranks_not_filling_the_machine_are_unpinned(flat_machine):
    core_plan = plan_cores(discover_machine(flat_machine(num_cores=8).root), ranks_per_node=2, cpus_per_rank=2)
    assert all(not rank.pin and rank.num_threads == 2 for rank in core_plan.ranks)
    assert "other jobs" in core_plan.reasons[0]


def test_cpu_quota_limits_the_number_of_threads(flat_machine):
    machine = discover_machine(flat_machine(num_cores=8).root)
    machine = replace(machine, limits=replace(machine.limits, cpu_quota=2.5))
    core_plan = plan_cores(machine, ranks_per_node=1)
    assert core_plan.ranks[0].num_threads == 2
    assert "2.5 CPU(s) of time" in core_plan.reasons[0]


@pytest.mark.parametrize(("ranks", "cpus"), [(0, None), (1, 0)])
def test_less_than_one_rank_or_cpu_is_rejected(ranks, cpus):
    with pytest.raises(UserError, match="expected: 1 or more"):
        plan_cores(discover_machine(), ranks_per_node=ranks, cpus_per_rank=cpus)


@pytest.mark.usefixtures("restored_masks")
def test_apply_binds_to_the_planned_cpus_and_never_widens_a_mask():
    before = os.sched_getaffinity(0)
    one = min(before)
    (rank_plan,) = plan_cores(discover_machine(), ranks_per_node=1).ranks
    apply(replace(rank_plan, cpus=(one,), pin=False))
    assert os.sched_getaffinity(0) == before
    assert apply(replace(rank_plan, cpus=(one,), num_threads=1, pin=True)) == 1
    assert os.sched_getaffinity(0) == {one}
    assert apply(replace(rank_plan, cpus=tuple(sorted({one, one + 1})), num_threads=2, pin=True)) == 1
    assert os.sched_getaffinity(0) == {one}
