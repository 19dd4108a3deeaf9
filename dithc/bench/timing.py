"""Times of things that take turns, and what is said of them: median, spread, and ratios within each round."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any


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
        return median(abs(value - self.median) for value in self.seconds)

    def ratio_to(self, base: "Timing") -> float:
        """Median over the rounds of this time over the base's time in the same round."""
        return median(own / other for own, other in zip(self.seconds, base.seconds, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Median, spread and every single time."""
        return {"median": self.median, "mad": self.spread, "all": list(self.seconds)}


def take_turns(runs: Mapping[str, Callable[[], object]], *, repeats: int) -> dict[str, Timing]:
    """Times each run once per round, every other round in reverse, so that a drift of the machine meets all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name in list(runs) if turn % 2 == 0 else reversed(list(runs)):
            start = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}
