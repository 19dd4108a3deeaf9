"""Time to quality: the ratio is that of known curves, and what is compared is an experiment that the workflow takes."""

import math
from pathlib import Path

import pytest

from dithc.bench import table
from dithc.bench.quality import Plan, calibrated_steps, judge
from dithc.bench.quality.plan import SHARES, point_name, run_name
from dithc.bench.quality.result import Point, headroom, speedup
from dithc.config import experiment_of, load
from dithc.log import UserError
from dithc.report.quality_figure import draw_quality

ROOT = Path(__file__).parents[2]
STEPS = {"baseline": 80, "flow": 160}


def curve(times, *, faster: float = 1.0) -> list[Point]:
    """A score that falls by 10 each time that the time is multiplied by e; a candidate is somewhere `faster` times sooner."""
    return [
        Point(step=step, seconds=t, flops=2 * t, fid=100 - 10 * math.log(t * faster), kid=None)
        for step, t in enumerate(times, 1)
    ]


def plan(**changes) -> Plan:
    given = {"baseline": "baseline", "candidates": ("flow", "baseline"), "seeds": (0, 1), "evaluation": "judge"}
    return Plan(base=experiment_of([ROOT / "config/experiments/quality.yaml"]), **{**given, **changes})


@pytest.mark.parametrize("faster", [1.0, 1.7, 3.0, 0.6])
@pytest.mark.parametrize("axis", ["seconds", "flops"])
def test_ratio_is_that_of_curves_that_differ_by_a_factor_of_time(faster, axis):
    times = [10.0, 20.0, 40.0, 80.0]
    assert speedup(curve(times), curve(times, faster=faster), axis=axis) == pytest.approx(faster)
    assert speedup(curve(times), curve([2 * t for t in times], faster=faster), axis=axis) == pytest.approx(faster)


def test_two_of_one_kind_have_inverse_ratios():
    times = [10.0, 20.0, 40.0, 80.0]
    one, other = curve(times), curve(times, faster=2.5)
    there, back = speedup(one, other, axis="seconds"), speedup(other, one, axis="seconds")
    assert there * back == pytest.approx(1.0)


def test_score_that_was_there_before_the_first_point_bounds_the_ratio_from_below():
    times = [10.0, 20.0, 40.0, 80.0]
    assert speedup(curve(times), curve(times, faster=100.0), axis="seconds") == pytest.approx(8.0)


def test_steps_fill_the_budget_by_each_ones_own_step():
    found = calibrated_steps({"a": [0.5, 0.5], "b": [1.0, 3.0]}, budget_seconds=60)
    assert found == {"a": 120, "b": 24}
    with pytest.raises(UserError, match="--budget-minutes"):
        calibrated_steps({"a": [10.0]}, budget_seconds=60)


def test_plan_is_an_experiment_with_a_point_for_each_share_and_what_bounds_them():
    made = load(plan().experiment(STEPS))
    assert set(made.runs) == {"baseline-s0", "baseline-s1", "flow-s0", "flow-s1", "baseline-s2", "baseline-s3"}
    assert {made.seed_of(name) for name in made.runs} == {0, 1, 2, 3}
    assert [made.evaluations[f"flow-s1-{at}"].at for at in (20, 40, 80, 160)] == [20, 40, 80, 160]
    assert {made.evaluations[f"{name}-codec"].at for name in ("flow", "baseline")} == {"codec"}
    assert made.evaluations["flow-s0-160"].sampler == "heun"
    assert made.evaluations["baseline-s0-80"].sampler == "dpm-solver"
    calibration = load(plan().calibration())
    assert [name.rpartition("-")[2] for name in calibration.runs] == ["0", "0", "1", "1"]


def test_wrong_names_and_seeds_are_refused():
    for changes in ({"baseline": "x"}, {"candidates": ("x",)}, {"evaluation": "x"}):
        with pytest.raises(UserError, match="one of"):
            plan(**changes)
    for changes in ({"seeds": (1, 1)}, {"candidates": ()}):
        with pytest.raises(UserError, match="at least one of each"):
            plan(**changes)


def result():
    chosen = plan()
    factors = {("flow", 0): 2.0, ("flow", 1): 2.2, ("baseline", 2): 1.1, ("baseline", 3): 0.9}
    runs, scores = {}, {}
    for name, seed in chosen.trainings:
        per_step = 80 / STEPS[name]
        runs[run_name(name, seed)] = {"seconds_per_step_median": per_step}
        for share in SHARES:
            fid = 100 - 10 * math.log(80 * share * factors.get((name, seed), 1.0))
            scores[point_name(name, seed, int(STEPS[name] * share))] = {"fid": fid, "kid": 0.1}
    for name in chosen.contenders:
        scores[f"{name}-untrained"] = {"fid": 200.0, "floor": 3.0, "n_generated": 64}
        scores[f"{name}-codec"] = {"fid": 5.0}
    return judge(chosen, steps=STEPS, runs=runs, scores=scores, codecs={}, flops={"baseline": 2.0, "flow": 1.0})


def test_result_has_the_ratio_of_every_seed_their_mean_and_what_bounds_the_scores():
    found = result()
    assert [row["seeds"] for row in found["ratios"]["again"]["by_seed"]] == [[0, 2], [1, 3]]
    assert [row["wall"] for row in found["ratios"]["flow"]["by_seed"]] == pytest.approx([2.0, 2.2])
    assert found["ratios"]["flow"]["flop"] == pytest.approx(2.1)
    assert found["ratios"]["again"]["wall"] == pytest.approx(1.0, abs=0.01)
    assert headroom(5.0, found["limits"]["flow"]) == 0.0
    assert headroom(200.0, found["limits"]["flow"]) == 1.0
    text = table(found)
    assert "flow over baseline: R 2.10 +- 0.14 by wall time" in text
    assert "fresh weights 200, codec alone 5, floor 3, n 64" in text
    assert draw_quality(found, {}).startswith(b"\x89PNG")
