"""Success of a run, from its losses on train and held-out tiles."""

from dataclasses import dataclass

import numpy as np

from dithc.core.summaries import short
from dithc.report.assessment.records import QueryResult
from dithc.report.formatting import between
from dithc.report.records import Gain, RunFacts

CLEAR = 0.02  # relative change of a loss above the noise of held-out measurements on tens of tiles with fixed noise
LATE = 0.75  # share of the steps after which a falling loss means that training ended early
STILL = 0.005  # relative fall of the held-out loss since then


@dataclass(frozen=True, kw_only=True)
class ValidationTrend:
    """Course of the loss on held-out tiles: first, last and least value.

    `rises`: it ended clearly above its least value. `falls`: it still fell at the end.
    """

    first: float
    last: float
    least: float
    least_step: int
    rises: bool
    falls: bool


def held_out(run: RunFacts) -> ValidationTrend | None:
    """Return the course of the held-out loss; None with fewer than two measurements."""
    curve = run.curve
    places = np.flatnonzero(np.isfinite(curve.val_loss)) if curve else np.array([], int)
    if curve is None or len(places) < 2:
        return None
    steps, values = curve.steps[places], curve.val_loss[places]
    least = int(values.argmin())
    late = values[min(int(np.searchsorted(steps, LATE * steps[-1])), len(steps) - 2)]
    rises = bool(values[-1] > (1 + CLEAR) * values[least])
    return ValidationTrend(
        first=float(values[0]),
        last=float(values[-1]),
        least=float(values[least]),
        least_step=int(steps[least]),
        rises=rises,
        falls=not rises and bool(values[-1] < (1 - STILL) * late),
    )


def trained(run: RunFacts, gain: Gain | None) -> QueryResult:
    """Evaluate the losses of a run; `gain` is the fall of its score, if known."""
    if run.step is None:
        return QueryResult(mood="unknown", short="not run", text="This run has no checkpoint yet.")
    if run.loss_first10 is None or run.loss_last100 is None:
        return QueryResult(mood="unknown", short="unknown", text="The run has no recorded loss.")
    course = held_out(run)
    went = "fell" if run.loss_last100 < run.loss_first10 else "went"
    text = f"In {run.step:,} steps the loss {went} from {short(run.loss_first10)} to {short(run.loss_last100)}"
    text += f", on held-out tiles from {short(course.first)} to {short(course.last)}" if course else ""
    text += _end(course)
    is_better = gain is not None and gain.interval[0] > 0
    if gain and is_better:
        text += f" KID is clearly below its start: by {short(gain.fall)} {between(gain.interval)}."
    fell = run.loss_last100 < (1 - CLEAR) * run.loss_first10
    generalised = course is not None and course.last < (1 - CLEAR) * course.first
    if not (fell or is_better or generalised):
        return QueryResult(mood="poor", short="no", text=text + " Neither loss nor score is clearly below the start.")
    if run.step < run.steps_planned:
        return QueryResult(mood="fair", short=f"so far: step {run.step:,} of {run.steps_planned:,}", text=text)
    if course and course.rises:
        return QueryResult(mood="fair", short="yes, then it overfitted", text=text)
    return QueryResult(mood="good", short="yes", text=text)


def _end(course: ValidationTrend | None) -> str:
    if course is None:
        return "; no held-out loss."
    if course.rises:
        return f", with a minimum of {short(course.least)} at step {course.least_step:,}: it began to memorize."
    return ", and was still falling." if course.falls else ", and has leveled off."
