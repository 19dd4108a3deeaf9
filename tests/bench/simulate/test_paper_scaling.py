"""Tests of the paper's weak scaling, reproduced from its own inputs, and of stragglers against random draws."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dithc.bench.simulate import paper_scaling
from dithc.engine.cost import Links, ModelWorkload
from dithc.engine.cost.scenario import ComputeTime, ReductionMethod, Scenario, efficiencies, largest_draws
from dithc.engine.hardware import description

LX2 = Path(__file__).parents[3] / "profiles/machines/lx2.yaml"
NODES = (1, 4, 64, 256, 1024)


@pytest.fixture(scope="module")
def xl():
    return ModelWorkload.of_preset(paper_scaling.MODEL)


@pytest.fixture(scope="module")
def lx2():
    return Links.of(description.read(LX2))


@pytest.fixture(scope="module")
def found(xl, lx2):
    return paper_scaling.reproduce(xl, lx2, nodes=NODES, steps=16, seed=0)


@pytest.mark.slow
def test_published_times_match_within_5_percent_and_256_nodes_within_3(found):
    validation = found["validation"]
    assert [row["nodes"] for row in validation["seconds"]] == [1, 2, 4, 8, 16, 32, 64]
    assert [row["published"] for row in validation["seconds"]] == [17.37, 17.80, 18.50, 18.40, 18.51, 18.92, 19.00]
    assert all(abs(row["simulated"] / row["published"] - 1) <= 0.05 and row["within"] for row in validation["seconds"])
    assert [row["use"] for row in validation["seconds"]] == ["fitted"] * 4 + ["predicted"] * 3
    point = validation["efficiency"]
    assert (point["nodes"], point["published"], point["use"], point["within"]) == (256, 0.906, "predicted", True)
    assert abs(point["simulated"] - 0.906) <= 0.03


def test_fitted_communication_core_rate_matches_the_published_broadcast(found):
    rate = found["validation"]["checks"]["bytes a second of a communication core"]
    assert rate["simulated"] == pytest.approx(rate["published"][0], rel=0.1)


def test_curves_have_unique_labels_and_complete_points(found):
    kinds = [(curve["kind"], curve["mode"], curve["global_batch_size"]) for curve in found["curves"]]
    assert kinds.count(("published", "weak", None)) == 3
    assert {batch for _, mode, batch in kinds if mode == "strong"} == {448, 3072, 16384}
    assert len({(curve["label"], curve["global_batch_size"]) for curve in found["curves"]}) == len(kinds)
    for curve in found["curves"]:
        for point in curve["points"]:
            assert {"nodes", "ranks", "seconds", "efficiency", "exposed_seconds", "flops_per_second"} <= set(point)
            assert point["seconds"] > 0
            assert 0 < point["efficiency"] <= 1 + 1e-9


def test_no_point_has_fewer_images_than_ranks(found):
    strong = [curve for curve in found["curves"] if curve["mode"] == "strong"]
    nodes = {curve["global_batch_size"]: max(point["nodes"] for point in curve["points"]) for curve in strong}
    assert nodes == {448: 64, 3072: 256, 16384: 1024}  # 448 images suffice for 112 of the requested numbers


def test_flops_of_published_steps_match_the_papers_text(found):
    tuned = next(curve for curve in found["curves"] if curve["label"] == "DiT-HC, tuned")
    assert tuned["points"][-1]["linear_flops_per_second"] == pytest.approx(182.47e12, rel=0.01)  # section 5.6
    at_256 = next(curve for curve in found["curves"] if curve["label"] == "DiT-HC, GEMM-optimised")["points"][-1]
    assert at_256["linear_flops_per_second"] > 1e15  # section 5.7: "over 1 PFLOPS"


def test_default_spread_reproduces_the_tuned_efficiency_loss(xl, lx2):
    scenario = scenario_of(xl, lx2, ComputeTime(seconds=13.18, images=112, spread=paper_scaling.SPREAD), steps=32)
    assert efficiencies(scenario.points([1, 32]))[-1] == pytest.approx(13.18 / 13.5, abs=0.003)


@pytest.mark.parametrize(("ranks", "mean"), [(1, 0.0), (4, 1.02938), (1024, 3.24)])
def test_straggler_mean_equals_the_maximum_of_normal_draws(ranks, mean):
    assert np.mean(largest_draws(ranks, steps=400, seed=0)) == pytest.approx(mean, abs=0.02)


def test_straggler_draws_grow_with_ranks_and_are_reproducible_by_seed():
    draws = [largest_draws(ranks, steps=16, seed=3) for ranks in (1, 2, 7, 4096)]
    assert all(a <= b for few, many in pairwise(draws) for a, b in zip(few, many, strict=True))
    assert largest_draws(7, steps=16, seed=3) == draws[2] != largest_draws(7, steps=16, seed=4)


def scenario_of(model, links, computing, method=paper_scaling.DITHC, *, ranks_per_node=4, steps=1) -> Scenario:
    given = {"model": model, "method": method, "computing": computing, "links": links}
    return Scenario(**given, ranks_per_node=ranks_per_node, steps=steps)


def test_step_time_without_network_and_stragglers_equals_compute_time(xl):
    computing = ComputeTime(seconds=10.0, images=112, optimizer_seconds=0.5)
    for method in (paper_scaling.AUTHORS, paper_scaling.DITHC):
        free = scenario_of(xl, Links(), computing, method)
        assert [point.seconds for point in free.points(NODES)] == pytest.approx([10.0] * len(NODES))
    (point,) = free.points([8], mode="strong", global_batch_size=448)
    assert point.seconds == pytest.approx(0.5 + 9.5 / 2)  # half the images per node; the optimizer time is constant
    slower = ComputeTime(seconds=10.0, images=112, spread=0.1)
    one = scenario_of(xl, Links(), slower, ranks_per_node=1, steps=1000).point(1)
    assert one.seconds == pytest.approx(10 * math.exp(0.1**2 / 2), rel=1e-3)  # mean of the lognormal distribution


def test_method_switches_change_the_step_time_in_the_expected_direction(xl, lx2):
    computing = ComputeTime(seconds=13.18, images=112, optimizer_seconds=0.19)

    def seconds(**changes):
        return scenario_of(xl, lx2, computing, ReductionMethod(label="", **changes)).point(256).seconds

    base = seconds()
    assert seconds(wire="bf16") < base
    assert seconds(collective="ring") > base
    assert seconds(zero1=True) == pytest.approx(base - 0.19, abs=0.1)  # the optimizer is sharded, without other costs
