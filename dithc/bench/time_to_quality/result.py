"""Result of a comparison, from manifests: scores over time, and the speedup to the baseline's last score."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from dithc.bench.time_to_quality.plan import SHARES, ComparisonPlan, evaluation_name, evaluation_steps, run_name
from dithc.core.measurements import ABSENT, Measurement, Table, percent, rounded, short

LAST_POINT_KEYS = ("kid", "headroom", "memorized_fraction")  # of both runs of a pair
Numbers = Mapping[str, Mapping[str, Any]]
"""Numbers of manifests, by name."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Score at one step of a run.

    Attributes:
        seconds: training time so far, including codec training if the codecs of the variants differ.
        flops: floating-point operations so far.
        auc: detectability, the mean over scales of the AUC; None for few images.
        headroom: remaining fraction of the way from untrained weights to the best possible score; None if unknown.
        memorized_fraction: fraction of samples that copy training tiles; None without a search.
    """

    step: int
    seconds: float
    flops: float
    fid: float
    kid: float | None
    auc: float | None = None
    headroom: float | None = None
    memorized_fraction: float | None = None


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """Ratio of the times at which baseline and candidate reach a score.

    `bound` is "at least" if the candidate reached it at its first point, "at most" if the baseline did, else empty.
    """

    value: float
    bound: Literal["", "at least", "at most"]


def speedup(baseline: Sequence[Point], candidate: Sequence[Point], *, axis: str, score: str = "fid") -> Speedup:
    """Return the speedup of the candidate to the score that both reach, by `seconds` or `flops`.

    The score is the baseline's best, or the candidate's best if that is worse (the ratio is then below 1). Between two
    points the score is linear in the logarithm of the axis.
    """
    goal = max(min(getattr(point, score) for point in points) for points in (baseline, candidate))
    base_value, value = (_value_reaching(points, goal, axis, score) for points in (baseline, candidate))
    is_first = [getattr(points[0], score) < goal for points in (baseline, candidate)]
    return Speedup(value=base_value / value, bound="at least" if is_first[1] else "at most" if is_first[0] else "")


def _value_reaching(points: Sequence[Point], goal: float, axis: str, score: str) -> float:
    """Return the value of the axis at which a score is first reached, at the earliest the first point."""
    scores = [getattr(point, score) for point in points]
    number = next(number for number, value in enumerate(scores) if value <= goal)
    log_value = math.log(getattr(points[number], axis))
    if number == 0:
        return math.exp(log_value)
    prior, log_previous = scores[number - 1], math.log(getattr(points[number - 1], axis))
    return math.exp(log_previous + (log_value - log_previous) * (prior - goal) / (prior - scores[number]))


def compare_runs(
    plan: ComparisonPlan,
    *,
    steps: Mapping[str, int],
    seconds: Mapping[str, float],
    runs: Numbers,
    scores: Numbers,
    codecs: Numbers,
    flops: Mapping[str, float],
) -> dict[str, Any]:
    """Compute the result of a comparison.

    `runs` and `scores` are numbers of manifests, by run and evaluation. `codecs` has the training seconds of each
    variant's codec, and no entry without a trained codec. Steps, seconds and flops per step are by variant.
    """
    kinds = {plan.base.datasets[plan.base.runs[name].dataset].codec for name in plan.variants}
    codec_seconds = {
        name: float(codecs.get(name, {}).get("seconds", 0.0)) if len(kinds) > 1 else 0.0 for name in plan.variants
    }
    limits = {name: _limits(plan, name, scores) for name in plan.variants}

    def point(name: str, seed: int, step: int) -> Point:
        numbers = scores[evaluation_name(run_name(name, seed, steps[name]), step)]
        return Point(
            step=step,
            seconds=codec_seconds[name] + step * seconds[name],
            flops=step * flops[name],
            fid=float(numbers["fid"]),
            kid=numbers["kid"],
            auc=fmean(one["auc"] for one in found.values()) if (found := numbers.get("detectability")) else None,
            headroom=headroom(numbers["fid"], limits[name]),
            memorized_fraction=numbers.get("memorized_fraction"),
        )

    curves = {
        (name, seed): [point(name, seed, step) for step in evaluation_steps(steps[name])] for name, seed in plan.runs
    }
    ratios: dict[str, list[dict[str, Any]]] = {}
    for name, label, seed, candidate_seed in plan.pairs:
        reference, candidate = curves[plan.baseline, seed], curves[name, candidate_seed]
        has_auc = all(one.auc is not None for one in (*reference, *candidate))
        ratios.setdefault(label, []).append(
            {
                "seeds": [seed, candidate_seed],
                "wall": (wall := speedup(reference, candidate, axis="seconds")).value,
                "flop": speedup(reference, candidate, axis="flops").value,
                "auc": speedup(reference, candidate, axis="seconds", score="auc").value if has_auc else None,
                "bound": wall.bound,
                **{key: [getattr(points[-1], key) for points in (reference, candidate)] for key in LAST_POINT_KEYS},
            }
        )
    return {
        "bench": "quality",
        "settings": {name: getattr(plan, name) for name in ("baseline", "candidates", "seeds", "evaluation")}
        | {"experiment": plan.base.name},
        "steps": dict(steps),
        "seconds_per_step": dict(seconds),
        "codec_seconds": codec_seconds,
        "limits": limits,
        "runs": [
            {
                "variant": name,
                "seed": seed,
                "seconds_per_step": runs[run_name(name, seed, steps[name])]["seconds_per_step_median"],
                "points": [asdict(point) for point in points],
            }
            for (name, seed), points in curves.items()
        ],
        "ratios": {label: {"by_seed": rows, **_over_seeds(rows)} for label, rows in ratios.items()},
    }


def _limits(plan: ComparisonPlan, name: str, scores: Numbers) -> dict[str, Any]:
    """Return score limits: untrained weights, codec, floor, and the chance share of copies, from held-out tiles."""
    codec, untrained = scores[plan.codec_alone(name)], scores[plan.untrained]
    chance = next(
        (one["memorized_fraction_val"] for one in scores.values() if one.get("memorized_fraction") is not None), None
    )
    bounds = {
        "codec": codec["fid"],
        "floor": untrained["floor"],
        "untrained": untrained["fid"],
        "memorized_fraction": chance,
    }
    return bounds | {"n": untrained["n_generated"]}


def _over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    over: dict[str, Any] = {"bound": next((row["bound"] for row in rows if row["bound"]), "")}
    for axis in ("wall", "flop", "auc"):
        values = [row[axis] for row in rows if row[axis] is not None]
        over[axis] = fmean(values) if values else None
        over[f"{axis}_deviation"] = stdev(values) if len(values) > 1 else None
    return over


def headroom(fid: float, limits: Mapping[str, Any]) -> float | None:
    """Return the remaining fraction from untrained weights to the limit (codec or floor), or None without a limit."""
    best = max(float(limits["codec"]), float(limits["floor"] or 0.0))
    return (fid - best) / (limits["untrained"] - best) if limits["untrained"] > best else None


def quality_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the scores of each run by fraction of its steps, their limits, and the ratios."""
    settings = result["settings"]
    runs = [
        [f"{run['variant']}, seed {run['seed']}", *(rounded(point["fid"], digits=4) for point in run["points"])]
        + [rounded(run["points"][-1]["kid"], digits=4), rounded(run["points"][-1]["auc"], digits=3)]
        + [short(run["points"][-1]["seconds"])]
        + [percent(run["points"][-1][name], decimals=0) for name in ("headroom", "memorized_fraction")]
        for run in result["runs"]
    ]
    limits = [
        [name, *(rounded(limit[key], digits=4) for key in ("untrained", "codec", "floor")), str(limit["n"])]
        for name, limit in result["limits"].items()
    ]
    ratios = [
        [
            *(label, *(f"{ratio['bound']} {_format_ratio(ratio, axis)}".strip() for axis in ("wall", "flop"))),
            _format_ratio(ratio, "auc"),
            ", ".join(f"{row['wall']:.2f}" for row in ratio["by_seed"]),
        ]
        for label, ratio in result["ratios"].items()
    ]
    of_runs = ["Run", *(f"FID at {share:g}" for share in SHARES), "KID", "AUC", "Seconds", "Left", "Copies"]
    return Measurement(
        title=f"{settings['experiment']}, scored by {settings['evaluation']}; steps: "
        + ", ".join(f"{name} {count:,}" for name, count in result["steps"].items()),
        tables=[
            Table(title="Scores", head=of_runs, rows=runs),
            Table(title="Limits", head=["Run", "Untrained weights", "Codec alone", "Floor", "Images"], rows=limits),
            Table(
                title=f"Speedup over {settings['baseline']}, R",
                head=["Run", "By wall time", "By operations", "By wall time and AUC", "By seed"],
                rows=ratios,
            ),
        ],
    )


def _format_ratio(ratio: Mapping[str, Any], axis: str) -> str:
    if ratio[axis] is None:
        return ABSENT
    deviation = ratio[f"{axis}_deviation"]
    return f"{ratio[axis]:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")
