"""Figure 7: loss curves of platforms, and their largest deviation next to the noise of seeds.

Curves are compared per step, relative to the reference, after smoothing with a centered mean over a tenth of the steps.
Platforms are compared at equal seeds (same weights, images, noise), seeds on the reference only. A loss that is not
finite exceeds the noise.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dithc.core.reproduction import ResultCell, Series, published_value
from dithc.workflow.reproduction.jobs import CellJob
from dithc.workflow.reproduction.results import CellResults, cell_of, without_value

REFERENCE = "reference"
NOISE = "seeds of the reference"
WINDOWS = 10  # smoothing windows over all steps
ANCHORS = "Only step 1 is compared with the logs of the authors: later steps are of ImageNet latents."


@dataclass(frozen=True)
class LossCurve:
    """Losses of one run, with platform, network, batch and seed."""

    platform: str
    network: str
    batch: int
    seed: int
    losses: tuple[float, ...]
    job: CellJob
    file: str

    @property
    def group(self) -> tuple[str, int]:
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


def deviation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the largest relative difference of two curves per step; infinite for values that are not finite."""
    shares = [abs(a - b) / abs(b) for a, b in zip(first, second, strict=True)]
    return max(shares, default=0.0) if all(map(math.isfinite, shares)) else math.inf


def read_curves(job: CellJob, result: Mapping[str, Any], file: str) -> CellResults:
    """Return the curves of a cell, and the loss of their first step."""
    results = CellResults(notes=[f"{result['data'].capitalize()}.", ANCHORS])
    for record in result["curves"]:
        if record["status"] != "ok":
            results.cells += without_value(job, "skipped", record["reason"])
            continue
        curve = _curve(job, record, file)
        label = f"{curve.platform}, batch {curve.batch}, seed {curve.seed}"
        series = Series(
            label=label,
            kind="measured",
            x=tuple(float(step + 1) for step in range(len(curve.losses))),
            y=tuple(map(_finite, curve.losses)),
            smoothed=tuple(map(_finite, curve.smoothed)),
            x_label="step",
            y_label="loss",
            file=file,
        )
        results.series.append(series)
        full = job.metadata["full"] and record["model"]["preset"] == "DiT-XL/2"
        printed = published_value("fig7", "DiT-XL/2", "step 1") if full else None
        fields = {"row": label, "published": printed, **_value_fields(curve.losses[0], curve)}
        results.cells.append(cell_of(job, "step 1", "loss", "", **fields))
    return results


def compare_platforms(results: Mapping[str, tuple[CellJob, Mapping[str, Any], str]]) -> list[ResultCell]:
    """Return the deviation of each platform from the reference, and the noise of its seeds."""
    curves = [
        _curve(job, record, file)
        for job, result, file in results.values()
        for record in result["curves"]
        if record["status"] == "ok"
    ]
    cells = []
    for group in dict.fromkeys(curve.group for curve in curves):
        group_curves = [curve for curve in curves if curve.group == group]
        references = {curve.seed: curve for curve in group_curves if curve.platform == REFERENCE and not curve.broken}
        row = f"{_network(group[0])}, batch {group[1]}"
        noise = [(a, deviation(a.smoothed, b.smoothed)) for a, b in combinations(references.values(), 2)]
        deviations = {NOISE: noise}
        for curve in group_curves:
            if curve.platform != REFERENCE and (reference := references.get(curve.seed)):
                deviations.setdefault(curve.platform, []).append((curve, deviation(curve.smoothed, reference.smoothed)))
        for column, pairs in deviations.items():
            if pairs:
                curve, value = max(pairs, key=lambda pair: pair[1])
                quantity = "largest deviation of the smoothed loss"
                cells.append(cell_of(curve.job, column, quantity, "%", row=row, **_value_fields(100 * value, curve)))
    return cells


def _value_fields(value: float, curve: LossCurve) -> dict[str, Any]:
    finite = {"value": value, "file": curve.file}
    return finite if math.isfinite(value) else {"status": "skipped", "reason": curve.broken}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _curve(job: CellJob, record: Mapping[str, Any], file: str) -> LossCurve:
    losses = tuple(float(loss) for loss in record["losses"])
    network = json.dumps(record["model"], sort_keys=True)
    return LossCurve(record["platform"], network, record["batch"], record["seed"], losses, job, file)


def _network(network: str) -> str:
    model = json.loads(network)
    changed = ", ".join(f"{name} {value}" for name, value in model.items() if name != "preset")
    return str(model["preset"]).removeprefix("DiT-") + (f" with {changed}" if changed else "")
