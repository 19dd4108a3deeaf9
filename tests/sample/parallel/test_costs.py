"""Tests of predicted seconds: worked examples of the documentation, manual arithmetic, and invariants of any choice."""

from dataclasses import replace

import pytest

from dithc.core.logging import UserError
from dithc.model import DiTConfig
from dithc.sample.parallel import ParallelDegrees, SamplingWork, best_degrees, planner
from dithc.sample.parallel.planner import CostModel, LinkModel, MachineRates, calibration

DIE = 1.51e12  # FLOP/s of a die of LX2, fp32
FAST, SLOW = LinkModel(latency=3e-6, bandwidth=24e9), LinkModel(latency=3e-6, bandwidth=0.5e9)
# Assumptions of the worked examples: products as fast with few tokens, no cost in addition to exchanges; a core copies
# twice at 4 GB/s.
PAGE = MachineRates(flops=DIE, inside=LinkModel(latency=50e-6, bandwidth=2e9), between=FAST, copy_rate=1e15)
# Typical description of a node: 40 GB/s for a die's cores, two separate attention calls per block for messages, slower
# products for few tokens.
NODE = replace(PAGE, copy_rate=40e9, barrier_seconds=20e-6, split_call_seconds=500e-6, half_tokens=16.0)


def work_of(tokens: int, **fields) -> SamplingWork:
    side = 2 * int(tokens**0.5)
    config = DiTConfig(hidden_size=1152, depth=28, num_heads=16, patch_size=2, input_size=side)
    return SamplingWork.of(config, **({"shards": [1], "branches": 2} | fields))


def costs_of(work: SamplingWork, rates: MachineRates = NODE, *, ranks: int = 4, ranks_per_node: int = 4) -> CostModel:
    return CostModel(work=work, rates=rates, ranks=ranks, ranks_per_node=ranks_per_node)


def step(tokens: int, degrees: ParallelDegrees, rates: MachineRates, *, ranks: int = 256) -> float:
    return costs_of(work_of(tokens), rates, ranks=ranks).call(degrees, 2).whole


@pytest.mark.parametrize("tokens", [256, 4096, 65536])
def test_row_flops_match_the_closed_form(tokens) -> None:
    work = work_of(tokens)
    assert work.row_flops == pytest.approx(4 * 28 * tokens * 1152 * (6 * 1152 + tokens), rel=0.005)


@pytest.mark.parametrize(("tokens", "one", "ulysses", "shared"), [(256, 0.313, 0.098, 0.079), (4096, 7.69, 2.19, 1.92)])
def test_step_time_on_four_dies_matches_the_worked_example(tokens, one, ulysses, shared) -> None:
    assert step(tokens, ParallelDegrees(), PAGE) == pytest.approx(one, rel=0.01)
    assert step(tokens, ParallelDegrees(cfg=2, ulysses=2), PAGE) == pytest.approx(ulysses, rel=0.01)
    assert step(tokens, ParallelDegrees(cfg=2, shared=2), PAGE) == pytest.approx(shared, rel=0.01)


@pytest.mark.parametrize(
    ("degrees", "between", "seconds"),
    [
        (ParallelDegrees(), FAST, 810),
        (ParallelDegrees(cfg=2, ulysses=4, ring=32), FAST, 3.17),
        (ParallelDegrees(cfg=2, ulysses=4, ring=32), SLOW, 8.6),
        (ParallelDegrees(cfg=2, ulysses=16, ring=8), SLOW, 3.66),
    ],
)
def test_step_time_across_nodes_matches_the_worked_example(degrees, between, seconds) -> None:
    rates = replace(PAGE, between=between, inside=LinkModel(latency=1e-6, bandwidth=40e9))
    assert step(65_536, degrees, rates) == pytest.approx(seconds, rel=0.03)


def test_planner_keeps_1024_ranks_busy_with_ten_thousand_images() -> None:
    work = work_of(256, shards=[64] * 156 + [16], calls=50)
    chosen = planner.rank_degrees(costs_of(work, ranks=1024))
    assert chosen.best.ideal >= 0.95
    assert chosen.costs.alone / chosen.costs.job(ParallelDegrees()).whole / 1024 < 0.16  # control: one rank per shard


@pytest.mark.parametrize(
    ("bandwidth", "expected"), [(1.6e9, ParallelDegrees(ring=2)), (4e9, ParallelDegrees(ulysses=2))]
)
def test_ring_is_selected_only_for_large_savings(bandwidth, expected) -> None:
    """A ring rounds differently from one rank."""
    rates = replace(PAGE, inside=LinkModel(latency=0.0, bandwidth=bandwidth))
    work = work_of(4096, branches=1, in_memory=False)
    chosen = planner.rank_degrees(costs_of(work, rates, ranks=2, ranks_per_node=2))
    assert chosen.best.degrees == expected
    assert chosen.legal[0].degrees == ParallelDegrees(ring=2)
    assert ("rounds differently" in chosen.describe()) == (expected.ring == 1)
    given = best_degrees(work, ranks=2, ranks_per_node=2, fixed={"ring": 2}, rates=rates)
    assert given == ParallelDegrees(ring=2)


def test_block_exchange_time_matches_manual_arithmetic() -> None:
    """Ulysses sends 4 (U - 1) / U T D / N s bytes per block, a ring 2 (R - 1) T D / N s."""
    link = LinkModel(latency=0.0, bandwidth=1e9)
    rates = MachineRates(flops=1e30, inside=link, between=link, copy_rate=1e30)
    work = work_of(256, branches=1)
    costs = costs_of(replace(work, numbers=0), rates)
    strip = 28 * 256 * 1152 / 4 * 4  # bytes of all blocks
    assert costs.call(ParallelDegrees(ulysses=4), 1).exchange == pytest.approx(4 * 3 / 4 * strip / 1e9)
    assert costs.call(ParallelDegrees(ring=4), 1).exchange == pytest.approx(2 * 3 * strip / 1e9)
    both = 4 * 1 / 2 * strip / 1e9 + 2 * 1 * strip / 1e9
    assert costs.call(ParallelDegrees(ulysses=2, ring=2), 1).exchange == pytest.approx(both)
    bf16 = costs_of(replace(work, numbers=0, number_bytes=2), rates)
    assert bf16.call(ParallelDegrees(ulysses=4), 1).exchange == pytest.approx(4 * 3 / 4 * strip / 2 / 1e9)


def test_job_time_sums_shards_batches_calls_and_decoding() -> None:
    rates = MachineRates(flops=1e12, inside=None, between=None, copy_rate=1.0, call=0.5, decoding=3.0)
    work = work_of(256, shards=[64, 64, 64, 10], calls=10, lone_calls=4, batch=32)
    costs = costs_of(work, rates, ranks=2, ranks_per_node=2)
    row = work.row_flops / 1e12
    shard = 2 * (6 * (64 * row + 0.5) + 4 * (32 * row + 0.5)) + 64 * 3.0
    assert costs.job(ParallelDegrees()).whole == pytest.approx(2 * shard)
    half = 6 * (64 * row + 0.5) + 4 * (32 * row + 0.5) + 32 * 3.0  # each generates 32 of a shard, in one batch
    last = 6 * (10 * row + 0.5) + 4 * (5 * row + 0.5) + 5 * 3.0
    assert costs.job(ParallelDegrees(data=2)).whole == pytest.approx(3 * half + last)
    shared = replace(rates, inside=FAST, copy_rate=1e10)
    cut = costs_of(replace(work, decoders=8), shared, ranks=2, ranks_per_node=2)
    assert cut.job(ParallelDegrees(cfg=2)).whole < costs.alone - 200 * 1.5 * 0.99


def test_unmeasured_links_are_rejected_and_listed_in_the_table() -> None:
    rates = replace(PAGE, between=None)
    chosen = planner.rank_degrees(costs_of(work_of(256), rates, ranks=8))
    assert all(4 % (c.degrees.tokens * c.degrees.cfg) == 0 for c in chosen.legal)
    text = chosen.table(most=2)
    assert "neither measured nor described" in text
    assert "16 heads are not a multiple of 3" in text
    assert "more, " in text
    assert "<- chosen" in text
    with pytest.raises(UserError, match="neither measured nor described"):
        planner.rank_degrees(costs_of(work_of(256), rates, ranks=8), fixed={"ulysses": 8})


def test_work_without_a_network_uses_only_data_parallelism() -> None:
    rates = MachineRates(flops=1.0, inside=None, between=None, copy_rate=1.0, decoding=1.0)
    assert best_degrees(SamplingWork(shards=[64, 64]), ranks=4, ranks_per_node=4, rates=rates) == ParallelDegrees(
        data=2
    )
    assert best_degrees(SamplingWork(shards=[]), ranks=4, ranks_per_node=4, rates=rates) == ParallelDegrees()


def test_planner_limits_the_degree_on_ranks_sharing_cores() -> None:
    """Four ranks on two cores: with all active, each takes twice its time alone, and the exchanges are useless."""
    equal_nodes = replace(NODE, inside=LinkModel(latency=50e-6, bandwidth=2e9))
    crowded = replace(equal_nodes, flops=DIE / 2, crowding=[(1, 0.5), (2, 0.5), (4, 1.0)])
    work = work_of(1024, branches=2, calls=10)
    separate, crowded_choice = (
        planner.rank_degrees(CostModel(work=work, rates=rates, ranks=4, ranks_per_node=4))
        for rates in (equal_nodes, crowded)
    )
    assert separate.best.degrees == ParallelDegrees(cfg=2, shared=2)
    assert crowded_choice.best.degrees == ParallelDegrees(cfg=2)
    assert crowded_choice.costs.alone == pytest.approx(separate.costs.alone)
    assert crowded_choice.best.speedup == pytest.approx(2.0, rel=0.05)


def test_crowding_counts_only_ranks_of_groups_with_a_shard() -> None:
    rates = MachineRates(flops=1e12, inside=None, between=None, copy_rate=1.0, crowding=[(1, 0.25), (2, 0.5), (4, 1.0)])
    row = work_of(256).row_flops / 1e12
    for shards, share in ((1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0), (8, 2.0)):
        work = work_of(256, branches=1, shards=[1] * shards)
        assert costs_of(work, rates).job(ParallelDegrees()).whole == pytest.approx(share * row)
    nodes = costs_of(work_of(256, branches=1, shards=[1] * 3), rates, ranks=8, ranks_per_node=2)
    assert nodes.job(ParallelDegrees()).whole == pytest.approx(0.5 * row), "no node has more at work than it has ranks"


def test_noisy_crowding_measurements_become_monotonic() -> None:
    each = [{"crowded": {1: 9.0, 2: 1.2, 4: 2.0}}, {"crowded": {2: 1.0, 4: 1.9}}, {"crowded": {4: 1.8}}]
    assert calibration._crowding(each) == [(1, 0.6), (2, 0.6), (4, 1.0)]
    assert calibration._crowding([{"crowded": {}}]) == []
