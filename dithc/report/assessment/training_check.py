"""Success of a run, from its losses on train and held-out tiles."""

from dataclasses import dataclass

import numpy as np

from dithc.core.measurements import short
from dithc.report.assessment.records import Assessment
from dithc.report.formatting import between
from dithc.report.records import EvaluationRecord, RunRecord

CLEAR = 0.02  # relative change of a loss above the noise of held-out measurements on tens of tiles with fixed noise
LATE = 0.75  # share of the steps after which a falling loss means that training ended early
STILL = 0.005  # relative fall of the held-out loss since then


@dataclass(frozen=True, kw_only=True)
class ValidationTrend:
    """Course of the loss on held-out tiles: first, last and least value.

    `is_rising`: it ended clearly above its least value. `is_falling`: it still fell at the end.
    """

    first: float
    last: float
    least: float
    least_step: int
    is_rising: bool
    is_falling: bool


def held_out(run: RunRecord) -> ValidationTrend | None:
    """Return the course of the held-out loss; None with fewer than two measurements."""
    curve = run.curve
    indices = np.flatnonzero(np.isfinite(curve.val_loss)) if curve else np.array([], int)
    if curve is None or len(indices) < 2:
        return None
    steps, values = curve.steps[indices], curve.val_loss[indices]
    min_index = int(values.argmin())
    late = values[min(int(np.searchsorted(steps, LATE * steps[-1])), len(steps) - 2)]
    is_rising = bool(values[-1] > (1 + CLEAR) * values[min_index])
    return ValidationTrend(
        first=float(values[0]),
        last=float(values[-1]),
        least=float(values[min_index]),
        least_step=int(steps[min_index]),
        is_rising=is_rising,
        is_falling=not is_rising and bool(values[-1] < (1 - STILL) * late),
    )


def trained(run: RunRecord, start: EvaluationRecord | None, item: EvaluationRecord | None) -> Assessment:
    """Evaluate the losses of a run, and the KID of its evaluation against its start, if both are known."""
    if run.step is None:
        return Assessment(rating="unknown", short="not run", text="This run has no checkpoint yet.")
    if run.mean_loss_first_10 is None or run.mean_loss_last_100 is None:
        return Assessment(rating="unknown", short="unknown", text="The run has no recorded loss.")
    trend = held_out(run)
    verb = "fell" if run.mean_loss_last_100 < run.mean_loss_first_10 else "went"
    text = (
        f"In {run.step:,} steps the loss {verb} from {short(run.mean_loss_first_10)} to {short(run.mean_loss_last_100)}"
    )
    text += f", on held-out tiles from {short(trend.first)} to {short(trend.last)}" if trend else ""
    text += _trend_text(trend)
    intervals = [one.score.kid_interval for one in (start, item) if one and one.score and one.score.kid_interval]
    is_better = len(intervals) == 2 and intervals[1][1] < intervals[0][0]
    if is_better:
        text += f" KID fell clearly, from {between(intervals[0])} to {between(intervals[1])} (95%)."
    has_fallen = run.mean_loss_last_100 < (1 - CLEAR) * run.mean_loss_first_10
    has_generalized = trend is not None and trend.last < (1 - CLEAR) * trend.first
    if not (has_fallen or is_better or has_generalized):
        return Assessment(rating="poor", short="no", text=text + " Neither loss nor score is clearly below the start.")
    if run.step < run.steps_planned:
        return Assessment(rating="fair", short=f"so far: step {run.step:,} of {run.steps_planned:,}", text=text)
    if trend and trend.is_rising:
        return Assessment(rating="fair", short="yes, then it overfitted", text=text)
    return Assessment(rating="good", short="yes", text=text)


def _trend_text(trend: ValidationTrend | None) -> str:
    if trend is None:
        return "; no held-out loss."
    if trend.is_rising:
        return f", with a minimum of {short(trend.least)} at step {trend.least_step:,}: it began to memorize."
    return ", and was still falling." if trend.is_falling else ", and has leveled off."
