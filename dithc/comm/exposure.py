"""What the exchange of a step cost: time that was waited for it, time that it took, and bytes; measured, nothing estimated."""

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exposure:
    """What the exchange of one step cost this rank.

    Attributes:
        exposed_seconds: time the computing thread waited for it.
        bytes_moved: of gradients and weights, handed over by this rank.
        communication_seconds: time in which at least one exchange was under way; None where the backend does not tell.
    """

    exposed_seconds: float = 0.0
    bytes_moved: int = 0
    communication_seconds: float | None = None

    @property
    def overlap_fraction(self) -> float | None:
        """The share of the communication that computing hid, from 0 to 1; None where it is not known."""
        if not self.communication_seconds:
            return None
        return min(1.0, max(0.0, 1.0 - self.exposed_seconds / self.communication_seconds))

    def metrics(self) -> dict[str, float]:
        """What is known, by name."""
        known = vars(self) | {"overlap_fraction": self.overlap_fraction}
        return {name: value for name, value in known.items() if value is not None}


class Meter:
    """Adds up the exchanges since it was last asked."""

    def __init__(self) -> None:
        self._clear()

    def sent(self, num_bytes: int) -> None:
        """Counts bytes that were handed over."""
        self._bytes += num_bytes

    def wait(self, work: Any) -> None:
        """Waits for an exchange.

        Raises:
            TimeoutError, RuntimeError: another rank is gone or late.
        """
        begun = time.perf_counter()
        work.wait()
        self._exposed += time.perf_counter() - begun
        self._spans.append((getattr(work, "begun", None), getattr(work, "ended", None)))

    def take(self) -> Exposure:
        """The sum since the last call."""
        taken = Exposure(self._exposed, self._bytes, covered(self._spans))
        self._clear()
        return taken

    def _clear(self) -> None:
        self._exposed, self._bytes = 0.0, 0
        self._spans: list[tuple[float | None, float | None]] = []


def covered(spans: list[tuple[float | None, float | None]]) -> float | None:
    """The length of the union of intervals; None where there are none, or an end of one is not known."""
    known = sorted((begun, ended) for begun, ended in spans if begun is not None and ended is not None)
    if not known or len(known) < len(spans):
        return None
    total, reached = 0.0, float("-inf")
    for begun, ended in known:
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total
