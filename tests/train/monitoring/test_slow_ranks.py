"""Detection of slow ranks: simulated times of many ranks, and two real ranks with a slow source."""

import numpy as np
import pytest

from dithc.bench.simulate.paper_scaling import SPREAD
from dithc.core.integrity import load_document
from dithc.engine.cost import balanced_shares
from dithc.train.monitoring import SLOW_FILE
from dithc.train.monitoring.slow_links import LinkWatch
from dithc.train.monitoring.slow_ranks import (
    TOTALS,
    RankTimes,
    SlowRankDetector,
    median_of_others,
)
from tests.ranks import needs_launcher, run_on_ranks
from tests.train.conftest import rows, store_of

STEPS = 10  # per table


class Simulation:
    """Steps of ranks with log-normal speeds; `slow` and `parts` change ranks from step `since`."""

    def __init__(self, ranks: int, *, seed: int, spread: float = SPREAD, seconds: float = 0.5) -> None:
        self.ranks, self.spread, self.seconds = ranks, spread, seconds
        self.draws = np.random.default_rng(seed)
        self.detector = SlowRankDetector(images=[4] * ranks, nodes=[f"n{rank // 4}" for rank in range(ranks)])
        self.last = 0

    def run(
        self, steps: int, *, slow: dict[int, float] | None = None, parts: dict[str, dict[int, float]] | None = None
    ):
        """Add steps in tables; `slow` maps ranks to factors, `parts` totals to seconds per step by rank."""
        found = []
        for _ in range(steps // STEPS):
            own = self.seconds * np.exp(self.spread * self.draws.standard_normal((STEPS, self.ranks)))
            for rank, factor in (slow or {}).items():
                own[:, rank] *= factor
            totals = {name: np.zeros(self.ranks) for name in TOTALS}
            totals["on_cpu"] = own.sum(axis=0)
            for name, ranks in (parts or {}).items():
                for rank, seconds in ranks.items():
                    totals[name][rank] = STEPS * seconds
            self.last += STEPS
            found += self.detector.add(RankTimes(last=self.last, own=own, totals=totals))
        return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 16, 1024])
def test_a_slow_rank_is_found_within_thirty_steps_and_no_other(ranks):
    for seed in range(5):
        simulation = Simulation(ranks, seed=seed)
        assert simulation.run(100) == []
        (found,) = simulation.run(30, slow={ranks - 1: 1.3})
        assert found.rank == ranks - 1
        assert found.ratio == pytest.approx(1.3, rel=0.1)
        assert found.node == f"n{(ranks - 1) // 4}"
        assert not found.is_pause


def test_fifteen_percent_is_found_among_1024_ranks_in_100_steps_with_the_spread_of_the_paper():
    found = [Simulation(1024, seed=seed).run(100, slow={seed * 13: 1.15}) for seed in range(60)]
    assert sum([item.rank for item in items] == [seed * 13] for seed, items in enumerate(found)) >= 59


def test_ten_thousand_quiet_steps_of_1024_ranks_have_no_finding():
    assert Simulation(1024, seed=3).run(10_000) == []


def test_both_ranks_of_a_slow_node_are_found_on_two_nodes():
    simulation = Simulation(4, seed=0)
    simulation.run(60)
    assert {item.rank for item in simulation.run(30, slow={2: 1.4, 3: 1.4})} == {2, 3}


def test_a_rank_with_more_images_is_not_slow():
    simulation = Simulation(2, seed=0)
    simulation.detector.images = [4, 6]
    assert simulation.run(200, slow={1: 1.5}) == []


@pytest.mark.parametrize("factors", [{0: 4 / 3, 1: 4 / 3}, {}])
def test_ranks_with_equal_times_per_image_or_per_step_are_not_slow(factors):
    """Shares 3, 3, 2, 2 with a fixed time of one image per step; and shares that balance ranks of different speed."""
    simulation = Simulation(4, seed=0)
    simulation.detector.images = [3, 3, 2, 2]
    assert simulation.run(200, slow=factors) == []


def test_a_rank_that_recovers_is_not_slow_any_more_and_is_found_again():
    simulation = Simulation(4, seed=0)
    assert len(simulation.run(60, slow={1: 1.5})) == 1
    assert [item.rank for item in simulation.detector.slow] == [1]
    assert simulation.run(60) == []
    assert simulation.detector.slow == []
    assert len(simulation.run(60, slow={1: 1.5})) == 1


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"images": {1: 0.2}}, "images"),
        ({"copies": {1: 0.2}}, "copies"),
        ({"images": {1: 0.1}, "copies": {1: 0.1}}, "mixed"),
        ({"throttled": {1: 0.2}}, "quota"),
        ({"stolen": {1: 0.2}}, "hypervisor"),
        ({"delayed": {1: 0.15}}, "other processes"),
        ({"on_cpu": {1: 0.5}}, "stopped"),
        ({"major_faults": {1: 20.0}, "on_cpu": {1: 0.5}}, "paging"),
        ({"ghz": {0: 2.6, 1: 1.8, 2: 2.6, 3: 2.6}}, "clock"),
        ({}, "computation"),
    ],
)
def test_cause_is_the_part_that_explains_the_excess(parts, cause):
    simulation = Simulation(4, seed=1)
    (found,) = simulation.run(60, slow={1: 1.4}, parts=parts)
    assert found.cause == cause
    assert cause in str(found)


def test_one_long_step_is_a_pause_and_not_a_slow_rank():
    simulation = Simulation(4, seed=1)
    simulation.run(50)
    own = np.full((STEPS, 4), 0.5)
    own[3, 2] = 5.5
    totals = {name: np.zeros(4) for name in TOTALS} | {"on_cpu": np.full(4, 5.0)}
    (found,) = simulation.detector.add(RankTimes(last=60, own=own, totals=totals))
    assert (found.rank, found.first_step, found.is_pause, found.cause) == (2, 54, True, "stopped")
    assert found.lost_seconds == pytest.approx(5.0)
    assert simulation.run(100) == []


def test_median_of_others_excludes_only_the_rank_itself():
    values = np.random.default_rng(0).normal(size=(3, 7))
    for count in (2, 3, 6, 7):
        expected = [[np.median(np.delete(row, rank)) for rank in range(count)] for row in values[:, :count]]
        assert median_of_others(values[:, :count]) == pytest.approx(np.array(expected))


def test_balanced_shares_minimize_the_longest_time_and_keep_the_sum():
    assert balanced_shares([8, 8], [8.0, 8 / 0.6]) == [10, 6]
    assert balanced_shares([10, 6], [10.0, 10.0]) == [10, 6]
    draws = np.random.default_rng(0)
    for _ in range(20):
        images, pace = draws.integers(1, 9, size=4), draws.uniform(0.5, 2.0, size=4)
        shares = balanced_shares(list(images), pace * images)
        assert sum(shares) == images.sum()
        assert min(shares) >= 1
        longest = max(pace * shares)
        for giver in range(4):
            for taker in range(4):
                moved = np.array(shares)
                moved[giver] -= 1
                moved[taker] += 1
                assert moved[giver] < 1 or max(pace * moved) >= longest - 1e-12


class EmulatedNodes:
    """Group of three nodes n0 to n2 with the given GB/s of each pair, by rank."""

    host = node = "n0"

    def __init__(self, rates: dict[tuple[int, int], float]) -> None:
        self.rates = rates

    def gather_objects(self, value):
        if isinstance(value, str):
            return ["n0", "n1", "n2"]
        return [
            {peer: 1e9 * self.rates[rank, peer] for peer in range(3) if (rank, peer) in self.rates} for rank in range(3)
        ]

    def link_rates(self, **_):
        return {}


def test_a_link_is_slow_against_others_or_its_earlier_rates_if_both_ends_agree():
    group = EmulatedNodes({(a, b): 2.0 for a in range(3) for b in range(3) if a != b})
    watch = LinkWatch(group)
    assert watch.is_due
    assert [watch.measure() for _ in range(3)] == [[]] * 3
    assert not watch.is_due
    group.rates[0, 2] = 0.1
    assert watch.measure() == [], "the other end is fast"
    group.rates[2, 0] = 0.2
    (text,) = watch.measure()
    assert text.startswith("n0 - n2 transfers 0.2 GB/s")
    assert watch.slow.keys() == {("n0", "n2")}
    assert watch.measure() == [], "known"
    group.rates = dict.fromkeys(group.rates, 0.5)
    assert len(watch.measure()) == 2, "new ones; all links are slower than before"
    assert len(watch.slow) == 3


SLOW_SOURCE = """
import os, pickle, sys, time
from dithc.engine.comm.launch.exit_report import RANK_VARIABLES
number = next(os.environ[name] for name in RANK_VARIABLES if name in os.environ)
os.environ["DITHC_NODE_NAME"] = os.environ["SLURMD_NODENAME"] = f"n{number}"
from dithc.engine import comm
from dithc.latents import Batches
from dithc.train import train

jobs, seconds_per_image = pickle.load(open(sys.argv[1], "rb"))
batch = Batches.batch
with comm.connect_ranks() as group:

    def slow(self, step, part):
        if group.rank == 1:
            time.sleep(seconds_per_image * (part.stop - part.start))
        return batch(self, step, part)

    Batches.batch = slow
    for job in jobs:
        train(job, group)
"""


class TestOnTwoRanks:
    pytestmark = [pytest.mark.slow, pytest.mark.mpi, needs_launcher]

    def test_a_rank_with_a_slow_source_is_named_in_log_and_document(self, job, tmp_path):
        one = job(until=45, steps=45, checkpoint_every=45)
        done = run_on_ranks(SLOW_SOURCE, given=([one], 0.02), folder=tmp_path)
        assert done.returncode == 0, done.stderr
        content = load_document((store_of(one).folder / SLOW_FILE).read_text())
        assert [(item["rank"], item["node"], item["cause"]) for item in content["findings"]] == [(1, "n1", "images")]
        assert content["slow_links"] == []
        assert content["slow_now"] == [1]
        assert len(content["ratios"]) == 4
        assert all(ratios[1] > 2 for ratios in content["ratios"])
        assert "watched 2 ranks for 40 steps: rank 1" in done.stderr
        assert "r1 |" not in done.stderr

    def test_measured_shares_give_a_slow_rank_fewer_images_with_the_same_losses(self, job, tmp_path):
        equal = job("equal", until=40, steps=40, checkpoint_every=20)
        first, second = (
            job("measured", until=until, steps=40, checkpoint_every=20, batch_shares="measured") for until in (20, 40)
        )
        done = run_on_ranks(SLOW_SOURCE, given=([equal, first, second], 0.02), folder=tmp_path)
        assert done.returncode == 0, done.stderr
        shares = load_document((store_of(second).folder / SLOW_FILE).read_text())["images"]
        assert shares[1] < 4 < shares[0]
        assert sum(shares) == 8
        assert "images per rank and step, as in the previous job" in done.stderr
        for row, expected in zip(rows(second), rows(equal), strict=True):
            assert row["loss"] == pytest.approx(expected["loss"], rel=1e-4)
