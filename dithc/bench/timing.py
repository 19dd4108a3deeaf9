"""Interleaved timing, with medians, spreads, and ratios within each round."""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

from dithc.bench.resume import MeasurementStopped, current_session

Name = TypeVar("Name", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated runs, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds."""
        return median(self.seconds)

    def ratios_to(self, base: "Timing") -> tuple[float, ...]:
        """Return this time relative to the base's time in the same round, per round."""
        return tuple(value / other for value, other in zip(self.seconds, base.seconds, strict=True))

    def ratio_to(self, base: "Timing") -> float:
        """Return the median of the ratios."""
        return median(self.ratios_to(base))

    def __add__(self, other: "Timing") -> "Timing":
        """Add times round by round."""
        return Timing(tuple(value + term for value, term in zip(self.seconds, other.seconds, strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """Return median, spread and all times."""
        return {"median": self.median, "mad": deviation(self.seconds), "all": list(self.seconds)}


def alternating(items: Sequence[Item], rounds: int) -> Iterator[Sequence[Item]]:
    """Yield the items for each round, in reverse order in every second round, so that drift affects all equally."""
    for number in range(rounds):
        yield items if number % 2 == 0 else items[::-1]


def time_runs(
    runs: Mapping[Name, Callable[[], object]],
    *,
    repeats: int,
    loops: Mapping[Name, int] | None = None,
    are_units: bool = False,
) -> dict[Name, Timing]:
    """Time each run once per round in alternating order.

    Args:
        runs: callables by name.
        repeats: rounds.
        loops: calls per measurement by name, default 1; the result is the time of one call.
        are_units: store each round as a unit of a resumable measurement; a stop ends early, after at least one round.
    """
    order, counts = list(runs), loops or {}
    rounds: list[list[float]] = []
    with suppress(MeasurementStopped):
        for names in alternating(order, repeats):
            once = partial(_round, runs, names, counts)
            rounds.append(current_session().unit(f"round of {order}", once) if are_units else once())
    if not rounds and repeats:
        raise MeasurementStopped
    return {name: Timing(tuple(times[index] for times in rounds)) for index, name in enumerate(order)}


def _round(runs: Mapping[Name, Callable[[], object]], names: Sequence[Name], loops: Mapping[Name, int]) -> list[float]:
    """Return the seconds of each run in the order of `runs`."""
    seconds = {}
    for name in names:
        run, count = runs[name], loops.get(name, 1)
        start = time.perf_counter()
        for _ in range(count):
            run()
        seconds[name] = (time.perf_counter() - start) / count
    return [seconds[name] for name in runs]


def loops_for(runs: Mapping[Name, Callable[[], object]], *, seconds: float) -> dict[Name, int]:
    """Return how often each run fits into `seconds`, at least once, by the time of its second execution."""
    for run in runs.values():
        run()
    once = time_runs(runs, repeats=1)
    return {name: max(1, math.floor(seconds / timing.median)) for name, timing in once.items()}


def deviation(values: Iterable[float]) -> float:
    """Return the median absolute deviation."""
    numbers = list(values)
    middle = median(numbers)
    return median(abs(value - middle) for value in numbers)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return median, spread and all values."""
    return {"median": median(values), "mad": deviation(values), "rounds": list(values)}


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean; 0 without values."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else 0.0
