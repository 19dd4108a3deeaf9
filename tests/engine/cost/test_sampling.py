"""Tests of degrees of sampling: manual arithmetic of predicted seconds, valid combinations, and the order of preference."""

from dataclasses import replace

import pytest

from dithc.core.logging import UserError
from dithc.engine.cost import Links, sampling
from dithc.engine.cost.sampling import ParallelDegrees, RankRates, SamplingCosts, SamplingWork, rank_degrees
from dithc.model import DiTConfig
from dithc.sample.parallel_plan import network_work, rates_of

DIE = RankRates(flops=1.51e12, half_tokens=0.0)  # a die of LX2, fp32, products as fast with few tokens
NODES = Links(latency=3e-6, byte=1 / 24e9, memory_byte=1 / 80e9, cards=4)


def work_of(tokens: int = 256, **fields) -> SamplingWork:
    side = 2 * int(tokens**0.5)
    config = DiTConfig(hidden_size=1152, depth=28, num_heads=16, patch_size=2, input_size=side)
    return network_work(config, **({"shards": [1], "branches": 2} | fields))


def costs_of(work: SamplingWork, *, ranks: int = 4, ranks_per_node: int = 4, **fields) -> SamplingCosts:
    return SamplingCosts(work=work, ranks=ranks, ranks_per_node=ranks_per_node, **({"links": NODES} | fields))


def best_degrees(work: SamplingWork, *, ranks: int, ranks_per_node: int, fixed=None) -> ParallelDegrees:
    return rank_degrees(costs_of(work, ranks=ranks, ranks_per_node=ranks_per_node), fixed=fixed).best.degrees


def shards(images: int) -> list[int]:
    return [min(64, images - at) for at in range(0, images, 64)]


@pytest.mark.parametrize("tokens", [256, 4096, 65536])
def test_row_flops_match_the_closed_form(tokens) -> None:
    work = work_of(tokens)
    assert work.row_flops == pytest.approx(4 * 28 * tokens * 1152 * (6 * 1152 + tokens), rel=0.005)


@pytest.mark.parametrize(("tokens", "one"), [(256, 0.313), (4096, 7.69), (65536, 810)])
def test_step_time_on_one_die_matches_the_worked_example(tokens, one) -> None:
    assert costs_of(work_of(tokens), rates=DIE).call(ParallelDegrees(), 2).whole == pytest.approx(one, rel=0.01)


def test_exchanges_match_manual_arithmetic() -> None:
    """In shared memory, 2 T D / R s bytes are copied per block; windows gather complete outputs in fp32."""
    work = replace(work_of(branches=1), numbers=0)
    strip = 28 * 256 * 1152 / 4 * 4  # bytes of all blocks
    memory = costs_of(work, copies=1e9).call(ParallelDegrees(shared=4), 1).exchange
    assert memory - 29 * sampling.BARRIER_SECONDS == pytest.approx(2 * strip / 1e9)
    bf16 = costs_of(replace(work, number_bytes=2), copies=1e9).call(ParallelDegrees(shared=4), 1).exchange
    assert bf16 - 29 * sampling.BARRIER_SECONDS == pytest.approx(strip / 1e9)
    rows = costs_of(work_of(branches=1, windows=8), ranks=8, links=Links(byte=1e-9))
    sent = rows.call(ParallelDegrees(windows=8), 8).exchange
    assert sent == pytest.approx(4 * 7 * 256 * 32 * 4 / 1e9), "four ranks share a card"


def test_job_time_sums_shards_batches_calls_and_decoding() -> None:
    rates = RankRates(flops=1e12, half_tokens=0.0, call_seconds=0.5, decoding_seconds=3.0)
    work = work_of(shards=[64, 64, 64, 10], calls=10, lone_calls=4, batch=32)
    costs = costs_of(work, rates=rates, ranks=2, ranks_per_node=2)
    row = work.row_flops / 1e12
    shard = 2 * (6 * (64 * row + 0.5) + 4 * (32 * row + 0.5)) + 64 * 3.0
    assert costs.job(ParallelDegrees()).whole == pytest.approx(2 * shard)
    half = 6 * (64 * row + 0.5) + 4 * (32 * row + 0.5) + 32 * 3.0  # each generates 32 of a shard, in one batch
    last = 6 * (10 * row + 0.5) + 4 * (5 * row + 0.5) + 5 * 3.0
    assert costs.job(ParallelDegrees(data=2)).whole == pytest.approx(3 * half + last)


def test_rates_reproduce_the_measured_blocks() -> None:
    work = work_of(1024)
    expected = RankRates(flops=2e11, half_tokens=40.0, call_seconds=0.25, decoding_seconds=0.5)

    def block(tokens: int) -> float:
        products = work.linear_flops / 28 / 1024 * (tokens + expected.half_tokens)
        return (products + 4 * tokens**2 * 1152) / expected.flops

    measured = {"long": block(1024), "short": block(256), "call": 0.25, "decoding": 0.5}
    found = rates_of(measured, work)
    assert found.flops == pytest.approx(expected.flops)
    assert found.half_tokens == pytest.approx(expected.half_tokens)
    assert (found.call_seconds, found.decoding_seconds) == (0.25, 0.5)
    disturbed = rates_of(measured | {"short": 2 * measured["long"]}, work)
    assert disturbed.flops < 21 * work.row_flops / 28 / measured["long"], "a slower short strip has no rate"


def test_ten_thousand_images_keep_1024_ranks_busy() -> None:
    work = work_of(shards=[64] * 156 + [16], calls=50)
    costs = costs_of(work, ranks=1024, rates=DIE)
    assert rank_degrees(costs).best.speedup / 1024 >= 0.95
    assert costs.alone / costs.job(ParallelDegrees()).whole / 1024 < 0.16  # control: one rank per shard


@pytest.mark.parametrize(
    ("images", "branches", "ranks", "expected"),
    [
        (64, 1, 2, ParallelDegrees(data=2)),
        (1, 2, 2, ParallelDegrees(cfg=2)),
        (1, 1, 2, ParallelDegrees(shared=2)),
        (1, 2, 4, ParallelDegrees(cfg=2, shared=2)),
        (2, 2, 8, ParallelDegrees(data=2, cfg=2, shared=2)),
        (10_000, 2, 157, ParallelDegrees()),
    ],
)
def test_degrees_split_images_then_branches_then_tokens(images, branches, ranks, expected) -> None:
    work = work_of(shards=shards(images), branches=branches)
    assert best_degrees(work, ranks=ranks, ranks_per_node=ranks) == expected


def test_scene_windows_are_split_before_tokens() -> None:
    work = work_of(windows=25)
    assert best_degrees(work, ranks=2, ranks_per_node=2).rows == 2
    found = best_degrees(work, ranks=64, ranks_per_node=4)
    assert (found.rows, found.shared) == (50, 1)  # one branch of one window per rank
    assert best_degrees(work, ranks=100, ranks_per_node=4).shared == 2
    scenes = work_of(shards=[1, 1, 1], branches=1, windows=25)
    assert best_degrees(scenes, ranks=3, ranks_per_node=3) == ParallelDegrees()  # one scene per rank, without exchange


def test_tokens_use_shared_memory_only_within_a_node() -> None:
    work = work_of(branches=1)
    assert best_degrees(work, ranks=4, ranks_per_node=4) == ParallelDegrees(shared=4)
    assert best_degrees(work, ranks=8, ranks_per_node=4) == ParallelDegrees(shared=4)
    text = rank_degrees(costs_of(work, ranks=8)).table(most=2)
    assert "3 does not divide the 4 ranks per node" in text
    assert "more, " in text
    assert "<- chosen" in text


def test_work_without_a_network_uses_only_data_parallelism() -> None:
    assert best_degrees(SamplingWork(shards=[64, 64]), ranks=4, ranks_per_node=4) == ParallelDegrees()
    assert best_degrees(SamplingWork(shards=[]), ranks=4, ranks_per_node=4) == ParallelDegrees()
    decoding = costs_of(SamplingWork(shards=[64, 64]), rates=RankRates(decoding_seconds=1.0))
    assert rank_degrees(decoding).best.degrees == ParallelDegrees(data=2)


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"cfg": 2}, "without guidance"),
        ({"shared": 3}, "does not divide"),
        ({"shared": 5}, "5 ranks, and there are 4"),
        ({"data": 4, "shared": 2}, "there are 4"),
        ({"windows": 2}, "2 ranks for 1 window"),
    ],
)
def test_invalid_degrees_are_rejected_with_a_complete_message(fixed, message) -> None:
    with pytest.raises(UserError) as error:
        best_degrees(work_of(shards=[64], branches=1), ranks=4, ranks_per_node=4, fixed=fixed)
    assert message in str(error.value)
    assert all(part in str(error.value) for part in ("machine.sampling", "got", "expected", "fix"))


def test_more_ranks_than_tokens_are_rejected() -> None:
    with pytest.raises(UserError, match="4 ranks for 3 tokens"):
        best_degrees(SamplingWork(shards=[1], tokens=3, heads=4), ranks=4, ranks_per_node=4, fixed={"shared": 4})
