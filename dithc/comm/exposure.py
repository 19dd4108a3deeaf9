"""Measured cost of the communication of a step: exposed time, communication time and bytes."""

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exposure:
    """Cost of the communication of one step on this rank.

    Attributes:
        exposed_seconds: time for which the computing thread waited.
        bytes_moved: bytes of gradients and weights sent by this rank.
        communication_seconds: time during which at least one exchange was active; None if the backend does not measure
            it.
    """

    exposed_seconds: float = 0.0
    bytes_moved: int = 0
    communication_seconds: float | None = None

    @property
    def overlap_fraction(self) -> float | None:
        """Share of communication time hidden by computation (0 to 1); None if unmeasured."""
        if not self.communication_seconds:
            return None
        return min(1.0, max(0.0, 1.0 - self.exposed_seconds / self.communication_seconds))

    def metrics(self) -> dict[str, float]:
        """Return the measured values by name."""
        known = vars(self) | {"overlap_fraction": self.overlap_fraction}
        return {name: value for name, value in known.items() if value is not None}


class Meter:
    """Accumulator of communication costs between two calls of `take`."""

    def __init__(self) -> None:
        self._clear()

    def sent(self, num_bytes: int) -> None:
        self._bytes += num_bytes

    def wait(self, work: Any) -> None:
        """Wait for an exchange; TimeoutError or RuntimeError if another rank is gone or late."""
        begun = time.perf_counter()
        work.wait()
        self._exposed += time.perf_counter() - begun
        self._spans.append((getattr(work, "begun", None), getattr(work, "ended", None)))

    def take(self) -> Exposure:
        """Return the sums since the last call and reset them."""
        taken = Exposure(self._exposed, self._bytes, covered(self._spans))
        self._clear()
        return taken

    def _clear(self) -> None:
        self._exposed, self._bytes = 0.0, 0
        self._spans: list[tuple[float | None, float | None]] = []


def covered(spans: list[tuple[float | None, float | None]]) -> float | None:
    """Return the length of the union of intervals; None without intervals or if an end is missing."""
    known = sorted((begun, ended) for begun, ended in spans if begun is not None and ended is not None)
    if not known or len(known) < len(spans):
        return None
    total, reached = 0.0, float("-inf")
    for begun, ended in known:
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total
