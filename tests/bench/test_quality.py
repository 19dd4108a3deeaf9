"""Time to quality: ratios of known curves, and the experiment of a comparison."""

import logging
import math
import re
from pathlib import Path

import pytest

from dithc.bench import summary
from dithc.bench.time_to_quality import ComparisonPlan, calibrated_seconds, calibrated_steps, compare_runs
from dithc.bench.time_to_quality.plan import evaluation_name, evaluation_steps, run_name
from dithc.bench.time_to_quality.result import Point, headroom, speedup
from dithc.cli.bench import quality
from dithc.config import load, load_experiment
from dithc.core.artifacts import Manifest
from dithc.core.integrity import dump_checksummed
from dithc.core.logging import UserError
from dithc.report.figures.benchmarks.time_to_quality import draw_quality

ROOT = Path(__file__).parents[2]
STEPS = {"baseline": 80, "flow": 160}
SIZES = {"hidden_size": 32, "depth": 2, "num_heads": 2}


def curve(times, *, faster: float = 1.0) -> list[Point]:
    """Return a score that falls by 10 per factor e of time; the candidate is `faster` times sooner everywhere."""
    return [
        Point(step=step, seconds=t, flops=2 * t, fid=100 - 10 * math.log(t * faster), kid=None)
        for step, t in enumerate(times, 1)
    ]


def plan(**changes) -> ComparisonPlan:
    given: dict = {"baseline": "baseline", "candidates": ("flow", "baseline"), "seeds": (0, 1), "evaluation": "scored"}
    given["base"] = load_experiment([ROOT / "config/experiments/quality.yaml"])
    return ComparisonPlan(**{**given, **changes})


@pytest.mark.parametrize("faster", [1.0, 1.7, 3.0, 0.6])
@pytest.mark.parametrize("axis", ["seconds", "flops"])
def test_speedup_equals_the_time_factor_between_curves(faster, axis):
    times = [10.0, 20.0, 40.0, 80.0]
    for other in (times, [2 * t for t in times]):
        found = speedup(curve(times), curve(other, faster=faster), axis=axis)
        assert (found.value, found.bound) == (pytest.approx(faster), "")
        back = speedup(curve(other, faster=faster), curve(times), axis=axis)
        assert found.value * back.value == pytest.approx(1.0)


def test_score_reached_at_the_first_point_bounds_the_speedup():
    times = [10.0, 20.0, 40.0, 80.0]
    sooner = speedup(curve(times), curve(times, faster=100.0), axis="seconds")
    assert (sooner.value, sooner.bound) == (pytest.approx(8.0), "at least")
    later = speedup(curve(times, faster=100.0), curve(times), axis="seconds")
    assert (later.value, later.bound) == (pytest.approx(1 / 8), "at most")


def test_calibrated_steps_fill_the_budget_by_seconds_per_step():
    assert calibrated_steps({"a": 0.5, "b": 2.0}, budget_seconds=60) == {"a": 120, "b": 24}
    with pytest.raises(UserError, match="--budget-minutes"):
        calibrated_steps({"a": 10.0}, budget_seconds=60)


def test_time_of_a_later_variant_is_scaled_by_the_baseline_time():
    assert calibrated_seconds({"a": [0.5, 0.5], "b": [1.0, 3.0]}, reference="a", known=None) == {"a": 0.5, "b": 2.0}
    busy = calibrated_seconds({"a": [1.4, 1.6], "c": [3.0]}, reference="a", known=0.5)
    assert busy == {"a": pytest.approx(0.5), "c": pytest.approx(1.0)}


def test_time_of_a_later_baseline_is_scaled_by_stored_times(tmp_path, monkeypatch):
    slow = {"flow": 1.0, "baseline": 2.0, "muon": 4.0}  # seconds per step on the first day; later days are slower
    day = 1.0

    def trained(content, path, profile, *, runs_alone):
        assert runs_alone
        for name, run in content["runs"].items():
            kind = "muon" if "optimizer" in run else "flow" if "objective" in run else "baseline"
            numbers = {"step": run["steps"], "seconds_per_step_median": day * slow[kind]}
            out = path.parent / "runs" / name / f"step_{run['steps']:07d}.json"
            out.parent.mkdir(parents=True)
            Manifest(stage="train", name=name, spec={}, summary=numbers).write(out)
        return 0

    monkeypatch.setattr(quality, "_workflow", trained)
    for baseline, candidates in (("flow", ("flow",)), ("baseline", ("flow",)), ("flow", ("muon",))):
        found = quality._seconds(plan(baseline=baseline, candidates=candidates), tmp_path, "local", {"isa": "avx2"})
        assert found == pytest.approx({name: slow[name] for name in {baseline, *candidates}})
        day *= 3.0


def test_times_from_a_different_environment_are_discarded_and_logged(tmp_path, monkeypatch, caplog):
    logging.getLogger("dithc").propagate = True
    kept = {f"{name} {plan().identity(name)} local": 1.0 for name in ("baseline", "flow")}
    (tmp_path / quality.PLAN_FILE).write_text(dump_checksummed({"environment": {"isa": "ref"}, "seconds": kept}))
    monkeypatch.setattr(quality, "_workflow", lambda *_, **__: 1)
    assert quality._seconds(plan(), tmp_path, "local", {"isa": "ref"}) == {"baseline": 1.0, "flow": 1.0}
    assert quality._seconds(plan(), tmp_path, "local", {"isa": "avx2"}) is None
    assert "isa: ref -> avx2" in caplog.text
    assert plan(environment="b").calibrations("flow", ["flow"]) != plan(environment="a").calibrations("flow", ["flow"])


def test_environment_omits_the_machine_for_scheduler_profiles():
    local, cluster = (quality._environment(ROOT / "profiles" / name) for name in ("local", "slurm"))
    assert {"machine", "kernels", "packages"} <= set(local)
    assert not {"machine", "kernels", "host"} & set(cluster)
    assert {"packages", "variables", "profile"} <= set(cluster)


def test_plan_evaluates_every_budget_share_and_both_bounds():
    config = load(plan().experiment(STEPS))
    assert set(config.runs) == {"flow-s0-n160", "flow-s1-n160", *(f"baseline-s{seed}-n80" for seed in range(4))}
    assert {config.seed_of(name) for name in config.runs} == {0, 1, 2, 3}
    assert [config.evaluations[f"flow-s1-n160-at{step}"].checkpoint for step in (20, 40, 80, 160)] == [20, 40, 80, 160]
    assert {name: one.checkpoint for name, one in config.evaluations.items() if "-n" not in name} == {
        "baseline-untrained": "untrained",
        "codec-f4-z8": "codec",
    }
    assert config.evaluations["flow-s0-n160-at160"].sampler == "heun"
    assert config.evaluations["baseline-s0-n80-at80"].sampler == "dpm-solver"


def test_shipped_variants_can_be_calibrated_and_planned():
    names = tuple(name for name in plan().base.runs if name != "baseline")
    whole = plan(candidates=names)
    calibration = load(whole.calibration(whole.variants))
    assert {name for one in whole.variants for name in whole.calibrations(one, whole.variants)} == set(calibration.runs)
    distinct = len(calibration.runs) // 3
    assert [name.rpartition("-")[2] for name in calibration.runs] == sorted(["0", "1", "2"] * distinct)
    times = {name: whole.identity(name) for name in whole.variants}
    assert times["baseline"] == times["worse"] == times["trapezoid"] != times["flow"] == times["together"]
    assert len(set(times.values())) == distinct
    load(whole.experiment(dict.fromkeys(whole.variants, 800)))


def test_changed_budget_or_settings_use_separate_runs_and_calibrations():
    one, other = (set(plan().experiment({"baseline": 80 * k, "flow": 160 * k})["runs"]) for k in (1, 2))
    assert not one & other
    base = plan().base
    changed = plan(base=base.model_copy(update={"codecs": {**base.codecs, "f4-z8": base.codecs["none"]}}))
    calibrations = [set(one.calibrations("flow", ["baseline", "flow"])) for one in (plan(), changed)]
    calibrations.append(set(plan().calibrations("flow", ["baseline", "flow", "muon"])))
    assert len(set.union(*calibrations)) == sum(map(len, calibrations))


def test_incomparable_variants_are_rejected():
    base = plan().base
    fewer = base.evaluations["scored-flow"].model_copy(update={"num_images": 8})
    started = base.runs["flow"].model_copy(update={"init_from_run": "baseline"})
    for changes, message in (
        (
            {"base": base.model_copy(update={"evaluations": {**base.evaluations, "scored-flow": fewer}})},
            "evaluation's num_images",
        ),
        ({"base": base.model_copy(update={"runs": {**base.runs, "flow": started}})}, "without the time of that run"),
        *(({name: "x"}, "one or more of") for name in ("baseline", "evaluation")),
        ({"candidates": ("x",)}, "one or more of"),
        ({"seeds": (1, 1)}, "at least one of each"),
        ({"candidates": ()}, "at least one of each"),
    ):
        with pytest.raises(UserError, match=message):
            plan(**changes)


def result(*, copies=0.25):
    chosen = plan()
    factors = {("flow", 0): 2.0, ("flow", 1): 2.2, ("baseline", 2): 1.1, ("baseline", 3): 0.9}
    runs, scores = {}, {}
    for name, seed in chosen.runs:
        per_step = 80 / STEPS[name]
        run = run_name(name, seed, STEPS[name])
        runs[run] = {"seconds_per_step_median": 7 * per_step}  # of a machine with other load, which has no effect
        for at_step in evaluation_steps(STEPS[name]):
            fid = 100 - 10 * math.log(at_step * per_step * factors.get((name, seed), 1.0))
            scores[evaluation_name(run, at_step)] = {
                "fid": fid,
                "kid": 0.1,
                "memorized_fraction": copies,
                "memorized_fraction_val": 0.125,
            }
    scores["baseline-untrained"] = {"fid": 200.0, "floor": 3.0, "n_generated": 64}
    scores["codec-f4-z8"] = {"fid": 5.0}
    flops = {"baseline": 2.0, "flow": 1.0}
    seconds = {name: 80 / steps for name, steps in STEPS.items()}
    return compare_runs(chosen, steps=STEPS, seconds=seconds, runs=runs, scores=scores, codecs={}, flops=flops)


def test_result_contains_ratios_per_seed_means_and_score_bounds():
    found = result()
    assert [row["seeds"] for row in found["ratios"]["again"]["by_seed"]] == [[0, 2], [1, 3]]
    assert [row["wall"] for row in found["ratios"]["flow"]["by_seed"]] == pytest.approx([2.0, 2.2])
    assert found["ratios"]["flow"]["flop"] == pytest.approx(2.1)
    assert found["ratios"]["again"]["wall"] == pytest.approx(1.0, abs=0.01)
    for row in found["ratios"]["flow"]["by_seed"]:
        assert (row["kid"], row["memorized_fraction"]) == ([0.1, 0.1], [0.25, 0.25])
        assert row["headroom"] == pytest.approx([(100 - 10 * math.log(80 * r) - 5) / 195 for r in (1.0, row["wall"])])
    assert found["limits"]["flow"]["memorized_fraction"] == 0.125
    assert headroom(5.0, found["limits"]["flow"]) == 0.0
    assert headroom(200.0, found["limits"]["flow"]) == 1.0
    text = summary(found).text()
    assert re.search(r"^flow +2\.10 \+- 0\.14 ", text, re.MULTILINE)
    assert re.search(r"^flow +200 +5 +3 +64$", text, re.MULTILINE)
    assert draw_quality(found, {}).startswith(b"\x89PNG")


def test_unsearched_memorization_is_reported_as_unknown():
    assert result(copies=None)["limits"]["flow"]["memorized_fraction"] is None
    assert re.search(r"^baseline, seed 0 .* -$", summary(result(copies=None)).text(), re.MULTILINE)
    assert re.search(r"^baseline, seed 0 .* 25%$", summary(result()).text(), re.MULTILINE)
