"""Times of things that take turns, and what is said of them: median, spread, and ratios within each round."""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated runs of one thing, in the order they were made."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median time in seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Median absolute deviation from the median, in seconds."""
        return deviation(self.seconds)

    def ratios_to(self, base: "Timing") -> tuple[float, ...]:
        """This time over the base's time in the same round, for each round."""
        return tuple(own / other for own, other in zip(self.seconds, base.seconds, strict=True))

    def ratio_to(self, base: "Timing") -> float:
        """Median of the ratios."""
        return median(self.ratios_to(base))

    def __add__(self, other: "Timing") -> "Timing":
        """One after the other, round by round."""
        return Timing(tuple(own + more for own, more in zip(self.seconds, other.seconds, strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """Median, spread and every single time."""
        return {"median": self.median, "mad": self.spread, "all": list(self.seconds)}


def take_turns(
    runs: Mapping[Name, Callable[[], object]], *, repeats: int, loops: Mapping[Name, int] | None = None
) -> dict[Name, Timing]:
    """Times each run once per round, every other round in reverse, so that a drift of the machine meets all alike.

    Args:
        runs: what to run, by name.
        repeats: rounds.
        loops: how often a run is made for one time, which is then that of one run; 1 where it is not named.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name in list(runs) if turn % 2 == 0 else reversed(list(runs)):
            run, count = runs[name], (loops or {}).get(name, 1)
            start = time.perf_counter()
            for _ in range(count):
                run()
            seconds[name].append((time.perf_counter() - start) / count)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def loops_for(runs: Mapping[Name, Callable[[], object]], *, seconds: float) -> dict[Name, int]:
    """How often each run fits into `seconds`, at least once; each is made twice, the second time counts."""
    for run in runs.values():
        run()
    once = take_turns(runs, repeats=1)
    return {name: max(1, math.floor(seconds / timing.median)) for name, timing in once.items()}


def deviation(values: Iterable[float]) -> float:
    """Median absolute deviation from the median."""
    held = list(values)
    middle = median(held)
    return median(abs(value - middle) for value in held)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, spread and every single value."""
    return {"median": median(values), "mad": deviation(values), "rounds": list(values)}


def geometric_mean(values: Iterable[float]) -> float:
    """The n-th root of the product; 0 of nothing."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else 0.0
