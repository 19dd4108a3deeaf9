"""Quality of the samples of a run, between an untrained network and the best possible."""

from dithc.report.assessment.records import Mood, QueryResult, ScaleMark
from dithc.report.formatting import between, score
from dithc.report.records import SMALL, EvaluationFacts, ReportRecords, Score

# FID relative to the best possible (the greater of floor and codec), and its description. At these n, two equal sets differ
# by tens of percent. Factors of 3 and 10 are visible in samples.
STAGES: tuple[tuple[float, str], ...] = (
    (1.3, "as good as these features can tell"),
    (3.0, "close to the best these features can tell"),
    (10.0, "clearly short of the best"),
)
FAR = "far from the best"
MOODS: tuple[Mood, ...] = ("good", "good", "fair")


def last_scored(facts: ReportRecords, run: str) -> EvaluationFacts | None:
    """Return the last scored evaluation of a run, or the best of several at its end."""
    items = [
        item
        for item in facts.evaluations
        if item.run == run and item.score and item.checkpoint not in ("codec", "start")
    ]
    items = [item for item in items if item.checkpoint != "untrained"]
    latest = max((_place(item) for item in items), default=None)
    at_end = [(item.score.value(facts.measure), item) for item in items if item.score and _place(item) == latest]
    # Published features come first.
    best = min(at_end, key=lambda pair: (not (pair[1].score and pair[1].score.comparable), pair[0]), default=None)
    return best[1] if best else None


def _place(item: EvaluationFacts) -> float:
    return item.checkpoint if isinstance(item.checkpoint, int) else float("inf")


def start_of(facts: ReportRecords, item: EvaluationFacts) -> EvaluationFacts | None:
    """Return the initial evaluation of the same run with comparable scores."""
    for at in ("untrained", "start"):
        for other in facts.evaluations:
            if other.run == item.run and other.checkpoint == at and _judged_alike(other, item):
                return other
    return None


def codec_of(facts: ReportRecords, item: EvaluationFacts) -> EvaluationFacts | None:
    """Return the codec evaluation of the dataset with comparable scores."""
    scored = (other for other in facts.evaluations_of(item.dataset) if other.checkpoint == "codec")
    return next((other for other in scored if _judged_alike(other, item)), None)


def _judged_alike(one: EvaluationFacts, other: EvaluationFacts) -> bool:
    """Test whether scores are comparable and share the real split."""
    return one.real_split == other.real_split and alike(one.score, other.score)


def alike(one: Score | None, other: Score | None) -> bool:
    """Test whether scores share features, resize, and number of real tiles."""
    keys = ("sha256", "resize", "n_real")
    return one is not None and other is not None and all(getattr(one, key) == getattr(other, key) for key in keys)


def floor_of(one: Score) -> tuple[float, str] | None:
    """Return the floor at the n of the score, or of halves, and its name."""
    if one.floor_at_n is not None:
        return one.floor_at_n, f"floor at n = {one.n:,}"
    if one.floor is not None:
        halves = f" of {' and '.join(f'{n:,}' for n in one.floor_n)} tiles" if one.floor_n else ""
        return one.floor, f"floor (two halves{halves})"
    return None


def quality(facts: ReportRecords, run: str) -> tuple[QueryResult, list[ScaleMark]]:
    """Return the answer, and the scores on one scale."""
    item = last_scored(facts, run)
    if item is None or item.score is None:
        return QueryResult(mood="unknown", short="no score", text="The samples of this run have no score."), []
    now, codec, start, floor = item.score, codec_of(facts, item), start_of(facts, item), floor_of(item.score)
    # The codec is scored on its input tiles, so its FID may be below the floor of other tiles.
    limits = [codec.score.fid] if codec and codec.score else []
    words, mood = _words(now.fid, max([*limits, *(floor[:1] if floor else [])], default=None))
    interval = f" {between(now.fid_interval)}" if now.fid_interval else ""
    parts = [f"FID {score(now.fid)}{interval} {item.label}"]
    if codec and codec.score:
        parts.append(f"{_times(now.fid, codec.score.fid)} the codec alone")
    if floor:
        parts.append(f"{_times(now.fid, floor[0])} the {floor[1]}")
    text = ", ".join(parts) + "."
    if start and start.score:
        text += _way(facts, now, start, codec)
    if mood == "good" and (now.n < SMALL or not now.comparable):
        mood = "fair"  # few images, or features without published meaning
    marks = [ScaleMark(label="now", role="now", value=now.fid)]
    marks += [ScaleMark(label=floor[1].partition(" (")[0], role="floor", value=floor[0])] if floor else []
    marks += [ScaleMark(label="codec alone", role="codec", value=codec.score.fid)] if codec and codec.score else []
    marks += [ScaleMark(label=start.label, role="start", value=start.score.fid)] if start and start.score else []
    marks = sorted((mark for mark in marks if mark.value > 0), key=lambda mark: mark.value)
    return QueryResult(mood=mood, short=words, text=text), marks if len(marks) > 1 else []


def _words(fid: float, best: float | None) -> tuple[str, Mood]:
    if best is None or best <= 0:
        return f"FID {score(fid)} without a reference", "unknown"
    for (most, words), mood in zip(STAGES, MOODS, strict=True):
        if fid <= most * best:
            return words, mood
    return FAR, "poor"


def _times(value: float, other: float) -> str:
    return f"{value / other:.2g} ×" if other > 0 else "–"


def _way(facts: ReportRecords, now: Score, start: EvaluationFacts, codec: EvaluationFacts | None) -> str:
    """Describe progress from the start to the codec limit in the primary measure."""
    if start.score is None:
        return ""
    begin, here = start.score.value(facts.measure), now.value(facts.measure)
    if codec is None or codec.score is None or begin <= codec.score.value(facts.measure):
        return f" {start.label.capitalize()} it was {score(start.score.fid)}."
    share = (begin - here) / (begin - codec.score.value(facts.measure))
    if share <= 0:
        return f" By {facts.measure} it is not better than {start.label}."
    return f" By {facts.measure} it is {min(share, 1):.0%} of the way from {start.label} to the codec."
