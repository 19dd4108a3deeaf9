"""Tests of degrees of sampling: manual arithmetic of predicted seconds, valid combinations, and the order of preference."""

from dataclasses import replace

import pytest

from dithc.core.logging import UserError
from dithc.engine.cost import Links, sampling
from dithc.engine.cost.sampling import ParallelDegrees, RankRates, SamplingCosts, SamplingWork, rank_degrees
from dithc.sample.parallel_plan import ROWS, rates_of

NODES = Links(latency=3e-6, byte=1 / 24e9, memory_byte=1 / 80e9, cards=4)
RATES = RankRates(call_seconds=0.01, row_seconds=0.1, decoding_seconds=0.02)


def work_of(**fields) -> SamplingWork:
    return SamplingWork(**({"shards": [1], "branches": 2, "row_bytes": 32768.0} | fields))


def costs_of(work: SamplingWork, *, ranks: int = 4, ranks_per_node: int = 4, **fields) -> SamplingCosts:
    settings = {"links": NODES, "rates": RATES} | fields
    return SamplingCosts(work=work, ranks=ranks, ranks_per_node=ranks_per_node, **settings)


def best_degrees(work: SamplingWork, *, ranks: int, ranks_per_node: int, fixed=None) -> ParallelDegrees:
    return rank_degrees(costs_of(work, ranks=ranks, ranks_per_node=ranks_per_node), fixed=fixed).best.degrees


def shards(images: int) -> list[int]:
    return [min(64, images - at) for at in range(0, images, 64)]


def test_exchange_of_rows_matches_manual_arithmetic() -> None:
    work = work_of(windows=8)
    nodes = costs_of(work, ranks=8, links=Links(byte=1e-9)).call(ParallelDegrees(windows=8), 8)
    assert nodes.exchange == pytest.approx(7 * 32768 * 4 / 1e9), "four ranks share a card"
    node = costs_of(work, copies=1e9).call(ParallelDegrees(windows=4), 8)
    assert node.exchange == pytest.approx(sampling.BARRIER_SECONDS + 10 * 32768 / 1e9), "two rows written, eight read"
    apart = costs_of(replace(work, in_memory=False), links=Links(memory_byte=1e-9)).call(ParallelDegrees(windows=4), 8)
    assert apart.exchange == pytest.approx(2 * 6 * 32768 / 1e9), "one write and one read of the other rows"
    assert node.computing == pytest.approx(0.01 + 2 * 0.1)
    assert costs_of(work).call(ParallelDegrees(windows=4), 3).exchange == 0, "too few rows to share"


def test_job_time_sums_shards_batches_calls_and_decoding() -> None:
    rates = RankRates(call_seconds=0.5, row_seconds=0.1, decoding_seconds=3.0)
    work = work_of(shards=[64, 64, 64, 10], calls=10, lone_calls=4, batch=32)
    costs = costs_of(work, rates=rates, ranks=2, ranks_per_node=2)
    shard = 2 * (6 * (64 * 0.1 + 0.5) + 4 * (32 * 0.1 + 0.5)) + 64 * 3.0
    assert costs.job(ParallelDegrees()).whole == pytest.approx(2 * shard)
    half = 6 * (64 * 0.1 + 0.5) + 4 * (32 * 0.1 + 0.5) + 32 * 3.0  # each generates 32 of a shard, in one batch
    last = 6 * (10 * 0.1 + 0.5) + 4 * (5 * 0.1 + 0.5) + 5 * 3.0
    assert costs.job(ParallelDegrees(data=2)).whole == pytest.approx(3 * half + last)


def test_rates_reproduce_the_measured_calls() -> None:
    found = rates_of(0.3, 0.3 + (ROWS - 1) * 0.2, 0.5)
    assert (found.call_seconds, found.row_seconds) == (pytest.approx(0.1), pytest.approx(0.2))
    assert found.decoding_seconds == 0.5
    assert rates_of(0.3, 0.2, 0.0).row_seconds > 0, "a larger call is never free"
    assert rates_of(0.3, 9.0, 0.0).call_seconds == 0


def test_ten_thousand_images_keep_1024_ranks_busy() -> None:
    costs = costs_of(work_of(shards=[64] * 156 + [16], calls=50), ranks=1024)
    assert rank_degrees(costs).best.speedup / 1024 >= 0.9
    assert costs.alone / costs.job(ParallelDegrees()).whole / 1024 < 0.16  # control: one rank per shard


@pytest.mark.parametrize(
    ("images", "branches", "ranks", "expected"),
    [
        (64, 1, 2, ParallelDegrees(data=2)),
        (1, 2, 2, ParallelDegrees(cfg=2)),
        (1, 1, 2, ParallelDegrees()),
        (2, 2, 8, ParallelDegrees(data=2, cfg=2)),
        (10_000, 2, 157, ParallelDegrees()),
    ],
)
def test_degrees_split_images_then_branches(images, branches, ranks, expected) -> None:
    work = work_of(shards=shards(images), branches=branches)
    assert best_degrees(work, ranks=ranks, ranks_per_node=ranks) == expected


def test_scene_windows_are_split_over_ranks() -> None:
    work = work_of(windows=25)
    assert best_degrees(work, ranks=2, ranks_per_node=2).rows == 2
    assert best_degrees(work, ranks=64, ranks_per_node=4).rows == 50  # one branch of one window per rank
    scenes = work_of(shards=[1, 1, 1], branches=1, windows=25)
    assert best_degrees(scenes, ranks=3, ranks_per_node=3) == ParallelDegrees()  # one scene per rank, without exchange
    text = rank_degrees(costs_of(work, ranks=64)).table(most=2)
    assert "more, " in text
    assert "<- chosen" in text


def test_work_without_a_network_uses_only_data_parallelism() -> None:
    none = {"rates": RankRates(decoding_seconds=1.0)}
    assert rank_degrees(costs_of(SamplingWork(shards=[64, 64]), **none)).best.degrees == ParallelDegrees(data=2)
    assert rank_degrees(costs_of(SamplingWork(shards=[]), **none)).best.degrees == ParallelDegrees()


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"cfg": 2}, "without guidance"),
        ({"data": 5}, "5 ranks, and there are 4"),
        ({"windows": 2}, "2 ranks for 1 window"),
    ],
)
def test_invalid_degrees_are_rejected_with_a_complete_message(fixed, message) -> None:
    with pytest.raises(UserError) as error:
        best_degrees(work_of(shards=[64], branches=1), ranks=4, ranks_per_node=4, fixed=fixed)
    assert message in str(error.value)
    assert all(part in str(error.value) for part in ("machine.sampling", "got", "expected", "fix"))
