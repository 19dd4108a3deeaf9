"""Quality of the samples of a run, between an untrained network and the best possible; else of its restorations."""

from collections.abc import Mapping
from typing import Any

from dithc.report.assessment.records import Assessment, Rating, ScaleMark
from dithc.report.assessment.restorations import restored_quality
from dithc.report.formatting import between, score
from dithc.report.records import SMALL, EvaluationRecord, ReportRecords, Score

# FID relative to the best possible (the greater of floor and codec), and its description. At these n, two equal sets differ
# by tens of percent. Factors of 3 and 10 are visible in samples.
FID_RATIO_RATINGS: tuple[tuple[float, str, Rating], ...] = (
    (1.3, "as good as these features can tell", "good"),
    (3.0, "close to the best these features can tell", "good"),
    (10.0, "clearly short of the best", "fair"),
)
# AUC of a linear classifier, and the scale that limits the rating.
INDISTINGUISHABLE, DIFFERENT, HALF = 0.6, 0.8, "1/2"


def last_scored(records: ReportRecords, run: str) -> EvaluationRecord | None:
    """Return the last scored evaluation of a run, or the best of several at its end."""
    evaluations = (item for item in records.evaluations if item.run == run)
    items = [item for item in evaluations if item.score and item.checkpoint not in ("codec", "start", "untrained")]
    latest = max(map(_step_of, items), default=None)
    # Published features come first.
    return min((item for item in items if _step_of(item) == latest), key=records.rank, default=None)


def _step_of(item: EvaluationRecord) -> float:
    return item.checkpoint if isinstance(item.checkpoint, int) else float("inf")


def start_of(records: ReportRecords, item: EvaluationRecord) -> EvaluationRecord | None:
    """Return the initial evaluation of the same run with comparable scores."""
    for checkpoint in ("untrained", "start"):
        for candidate in records.evaluations:
            if candidate.run == item.run and candidate.checkpoint == checkpoint and _is_comparable(candidate, item):
                return candidate
    return None


def codec_of(records: ReportRecords, item: EvaluationRecord) -> EvaluationRecord | None:
    """Return the codec evaluation of the dataset with comparable scores."""
    scored = (other for other in records.evaluations_of(item.dataset) if other.checkpoint == "codec")
    return next((other for other in scored if _is_comparable(other, item)), None)


def _is_comparable(a: EvaluationRecord, b: EvaluationRecord) -> bool:
    """Test whether scores share features, resize, real split and number of real tiles."""
    if a.real_split != b.real_split or a.score is None or b.score is None:
        return False
    return all(getattr(a.score, key) == getattr(b.score, key) for key in ("sha256", "resize", "n_real"))


def floor_of(result: Score) -> tuple[float, str] | None:
    """Return the floor at the n of the score, or of halves, and its name."""
    if result.floor_at_n is not None:
        return result.floor_at_n, f"floor at n = {result.n:,}"
    if result.floor is not None:
        halves = f" of {' and '.join(f'{n:,}' for n in result.floor_n)} tiles" if result.floor_n else ""
        return result.floor, f"floor (two halves{halves})"
    return None


def quality(records: ReportRecords, run: str) -> tuple[Assessment, list[ScaleMark]]:
    """Return the answer, and the scores on one scale."""
    item = last_scored(records, run)
    if item is None or item.score is None:
        if any(one.prior == run for one in records.restorations):
            return restored_quality(records, run), []
        return Assessment(rating="unknown", short="no score", text="The samples of this run have no score."), []
    final, codec, start, floor = item.score, codec_of(records, item), start_of(records, item), floor_of(item.score)
    # The codec is scored on its input tiles, so its FID may be below the floor of other tiles.
    limits = [codec.score.fid] if codec and codec.score else []
    description, rating = _rate(final.fid, max([*limits, *(floor[:1] if floor else [])], default=None))
    parts = [f"FID {score(final.fid)} {item.label}"]
    if codec and codec.score:
        parts.append(f"{_ratio(final.fid, codec.score.fid)} the codec alone")
    if floor:
        parts.append(f"{_ratio(final.fid, floor[0])} the {floor[1]}")
    text = ", ".join(parts) + "."
    if final.detectability:
        description, rating, verdict = detectability_of(final.detectability, description, rating)
        text = f"{verdict} {text}"
    if start and start.score:
        text += _progress(records, final, start, codec)
    if rating == "good" and (final.n < SMALL or not final.comparable_to_published):
        rating = "fair"  # few images, or features without published meaning
    marks = [ScaleMark(label="now", role="now", value=final.fid)]
    marks += [ScaleMark(label=floor[1].partition(" (")[0], role="floor", value=floor[0])] if floor else []
    marks += [ScaleMark(label="codec alone", role="codec", value=codec.score.fid)] if codec and codec.score else []
    marks += [ScaleMark(label=start.label, role="start", value=start.score.fid)] if start and start.score else []
    marks = sorted((mark for mark in marks if mark.value > 0), key=lambda mark: mark.value)
    return Assessment(rating=rating, short=description, text=text), marks if len(marks) > 1 else []


def detectability_of(
    scales: Mapping[str, Mapping[str, Any]], description: str, rating: Rating
) -> tuple[str, Rating, str]:
    """Return the description and rating by FID, limited by detectability, and the verdict.

    The verdict names the finest scale at which a linear classifier does not distinguish the images from real tiles, and the
    statistics that distinguish them at the next finer scale.
    """
    names = list(scales)
    equal = next((name for name in names if scales[name]["auc"] <= INDISTINGUISHABLE), None)
    finer = names[: names.index(equal)] if equal is not None else names
    verdict = (
        f"A linear classifier does not distinguish the images from real tiles at {equal} of the resolution"
        if equal
        else ""
    )
    if finer:
        found = scales[finer[-1]]
        cause = max(found["groups"], key=lambda group: found["groups"][group])
        told = f"at {finer[-1]} with an AUC of {found['auc']:.2f} {between(found['interval'])}, most by {cause}"
        verdict += (
            f", but does {told}" if verdict else f"A linear classifier distinguishes the images from real tiles {told}"
        )
    if HALF in scales and scales[HALF]["auc"] > DIFFERENT and rating != "poor":
        description, rating = "clearly different from real tiles", "fair" if equal else "poor"
    return description, rating, f"{verdict}."


def _rate(fid: float, best: float | None) -> tuple[str, Rating]:
    if best is None or best <= 0:
        return f"FID {score(fid)} without a reference", "unknown"
    for limit, description, rating in FID_RATIO_RATINGS:
        if fid <= limit * best:
            return description, rating
    return "far from the best", "poor"


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2g} ×" if base > 0 else "–"


def _progress(records: ReportRecords, final: Score, start: EvaluationRecord, codec: EvaluationRecord | None) -> str:
    """Describe progress from the start to the codec limit in the primary measure."""
    if start.score is None:
        return ""
    initial, current = start.score.value(records.measure), final.value(records.measure)
    if codec is None or codec.score is None or initial <= codec.score.value(records.measure):
        return f" {start.label.capitalize()} it was {score(start.score.fid)}."
    share = (initial - current) / (initial - codec.score.value(records.measure))
    if share <= 0:
        return f" By {records.measure} it is not better than {start.label}."
    return f" By {records.measure} it is {min(share, 1):.0%} of the way from {start.label} to the codec."
