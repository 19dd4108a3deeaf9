"""How good it is, in sentences: the score that is told first, whether it is clearly below its start, what stands beside it."""

from dithc.report.facts import EvaluationFacts, Facts, Gain, Score
from dithc.report.verdict.quality import alike
from dithc.report.words import between, score


def verdict(facts: Facts, dataset: str) -> str:
    """Describe the scores of a data set; empty without scores."""
    found = [(item, item.score) for item in facts.evaluations_of(dataset) if item.score]
    scored = [(item, one) for item, one in found if item.at != "codec"]
    if not scored:
        return ""
    codec = [(item, one) for item, one in found if item.at == "codec"]
    parts = [_course(scored, facts.measure), *_codec(codec, facts.measure)]
    floor = scored[-1][1].floor
    halves = [] if floor is None else [f"two halves of the real tiles are {score(floor)} apart, which is the floor"]
    if facts.measure == "FID":
        return "; ".join([*parts, *halves]) + "."
    last = scored[-1][1]
    sentences = [*parts[:1], f"{last.n_generated:,} generated and {last.n_real:,} real images"]
    said = ["; ".join([", of ".join(sentences), *parts[1:]])]
    if gain := scored[-1][0].gain:
        said += [_gain(facts, scored[-1][0], gain)]
    return ". ".join([*said, "; ".join([_course(scored, "FID"), *_codec(codec, "FID"), *halves])]) + "."


def _course(scored: list[tuple[EvaluationFacts, Score]], measure: str) -> str:
    """Describe the first and last values."""
    judge, last = scored[-1]
    before = [(item, one) for item, one in scored[:-1] if item.real_split == judge.real_split and alike(one, last)]
    said = [f"{_told(one, measure)} ({item.label})" for item, one in (*before, scored[-1])]
    if not before:
        return f"{measure} is {said[0]}"
    falls = all(one.value(measure) > last.value(measure) for _, one in before)
    verb = "falls from" if falls else "does not fall below all before it: from"
    return f"{measure} {verb} {' and '.join(said[:-1])} to {said[-1]}"


def _codec(codec: list[tuple[EvaluationFacts, Score]], measure: str) -> list[str]:
    return [f"{item.label} has {_told(one, measure)}" for item, one in codec]


def _told(one: Score, measure: str) -> str:
    interval = f" {between(one.kid_interval)}" if measure == "KID" and one.kid_interval else ""
    return f"{score(one.value(measure))}{interval}"


def _gain(facts: Facts, item: EvaluationFacts, gain: Gain) -> str:
    """Describe whether the score is clearly below the start."""
    start = next(other.label for other in facts.evaluations if other.name == gain.start)
    low, high = gain.interval
    where = "clearly below" if low > 0 else "clearly above" if high < 0 else "not clearly below"
    verb = "contains" if low <= 0 <= high else "excludes"
    return (
        f"KID {item.label} is {where} KID {start}: it fell by {score(gain.fall)}, and the 95 % interval of that, "
        f"{between(gain.interval)}, {verb} 0"
    )
