"""Figure 7: loss curves of platforms, and their largest deviation against the seed noise.

Curves are compared smoothed, a centered mean over a tenth of the steps, per step, relative to the reference. Platforms are
compared at equal seeds (same weights, images, noise), seeds on the reference only. A loss that is not finite is never within the
noise.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dithc.papers import Cell, Series, published
from dithc.workflow.paper.jobs import Job
from dithc.workflow.paper.results import Read, cell_of, without_value

REFERENCE = "reference"
WINDOWS = 10  # of smoothing, in all steps
ANCHORS = "Of the loss of the authors' logs only step 1 is compared: those after it are of ImageNet's latents."
AXES: dict[str, Any] = {"x_label": "step", "y_label": "loss", "unit": ""}


@dataclass(frozen=True)
class Curve:
    """Losses of one run, with platform, network, batch and seed."""

    platform: str
    network: str
    batch: int
    seed: int
    losses: tuple[float, ...]
    job: Job
    file: str

    @property
    def group(self) -> tuple[str, int]:
        """Key of comparable curves."""
        return self.network, self.batch

    @property
    def smoothed(self) -> tuple[float, ...]:
        """Centered moving average, truncated at the ends."""
        half = len(self.losses) // WINDOWS // 2
        windows = [self.losses[max(0, i - half) : i + half + 1] for i in range(len(self.losses))]
        return tuple(sum(window) / len(window) for window in windows)

    @property
    def broken(self) -> str:
        """Description of the first loss that is not finite, or empty."""
        steps = (step for step, loss in enumerate(self.losses, start=1) if not math.isfinite(loss))
        return f"the loss of step {step} of seed {self.seed} is not finite" if (step := next(steps, None)) else ""


def deviation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest relative difference of two curves per step; infinite for values that are not finite."""
    shares = [abs(a - b) / abs(b) for a, b in zip(one, other, strict=True)]
    return max(shares, default=0.0) if all(map(math.isfinite, shares)) else math.inf


def read_curves(job: Job, result: Mapping[str, Any], file: str) -> Read:
    """The trainings of a cell, as curves with the loss of their first step."""
    read = Read()
    for told in result["curves"]:
        if told["status"] != "ok":
            read.cells += without_value(job, "skipped", told["reason"])
            continue
        curve = _curve(job, told, file)
        tiny = " of a tiny network" if "hidden_size" in told["model"] else ""
        label = f"{curve.platform}, batch {curve.batch}{tiny}, seed {curve.seed}"
        steps = tuple(float(step + 1) for step in range(len(curve.losses)))
        read.series.append(
            Series(
                label=label,
                kind="measured",
                x=steps,
                y=tuple(map(_drawn, curve.losses)),
                smoothed=tuple(map(_drawn, curve.smoothed)),
                file=file,
                **AXES,
            )
        )
        full = job.facts["full"] and told["model"]["preset"] == "DiT-XL/2"
        printed = published("fig7", "DiT-XL/2", "step 1") if full else None
        more: dict[str, Any] = {"row": label, "published": printed, "file": file, **_valued(curve.losses[0], curve)}
        read.cells.append(cell_of(job, "step 1", "loss", "", **more))
    read.notes += [result["data"].capitalize() + ".", ANCHORS]
    return read


def judge(results: Mapping[str, tuple[Job, Mapping[str, Any], str]]) -> Read:
    """Compare platforms with the reference and its seed noise; `results` maps cells to (cell, result, file)."""
    curves = [
        _curve(job, told, file)
        for job, result, file in results.values()
        for told in result["curves"]
        if told["status"] == "ok"
    ]
    read = Read()
    for group in dict.fromkeys(curve.group for curve in curves):
        own = [curve for curve in curves if curve.group == group]
        truths = {curve.seed: curve for curve in own if curve.platform == REFERENCE and not curve.broken}
        noise = max((deviation(a.smoothed, b.smoothed) for a, b in combinations(truths.values(), 2)), default=None)
        where = f"{_words(group[0])}, batch {group[1]}"
        read.findings += [f"{where}: {one.platform} breaks, {one.broken}." for one in own if one.broken]
        if noise is not None:
            read.cells.append(_told(next(iter(truths.values())), f"{where}: seed to seed, reference", noise))
        for platform, found in _deviations(own, truths):
            worst = max(found, key=lambda pair: pair[1])
            read.cells.append(_told(worst[0], f"{where}: {platform} from reference", worst[1]))
            if noise is not None:
                verdict = "within" if worst[1] <= noise else "NOT within"
                far = f"at most {worst[1]:.2g} of the loss" if math.isfinite(worst[1]) else "without limit"
                read.findings.append(
                    f"{where}: {platform} is {far} from the reference, {verdict} the {noise:.2g} "
                    f"by which {len(truths)} seeds differ."
                )
    return read


def _deviations(
    curves: Sequence[Curve], truths: Mapping[int, Curve]
) -> Iterator[tuple[str, list[tuple[Curve, float]]]]:
    for platform in dict.fromkeys(curve.platform for curve in curves if curve.platform != REFERENCE):
        pairs = [(one, truths[one.seed]) for one in curves if one.platform == platform and one.seed in truths]
        if pairs:
            yield platform, [(one, deviation(one.smoothed, truth.smoothed)) for one, truth in pairs]


def _told(curve: Curve, row: str, value: float) -> Cell:
    more = _valued(100 * value, curve)
    return cell_of(curve.job, "largest deviation", "of the smoothed loss", "%", row=row, file=curve.file, **more)


def _valued(value: float, curve: Curve) -> dict[str, Any]:
    """Return the cell of a curve's number, which may be missing."""
    return {"value": value} if math.isfinite(value) else {"status": "skipped", "reason": curve.broken}


def _drawn(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _curve(job: Job, told: Mapping[str, Any], file: str) -> Curve:
    losses = tuple(float(loss) for loss in told["losses"])
    network = json.dumps(told["model"], sort_keys=True)
    return Curve(told["platform"], network, told["batch"], told["seed"], losses, job, file)


def _words(network: str) -> str:
    """Return a preset with its changes."""
    model = json.loads(network)
    changed = ", ".join(f"{name} {value}" for name, value in model.items() if name != "preset")
    return str(model["preset"]).removeprefix("DiT-") + (f" with {changed}" if changed else "")
