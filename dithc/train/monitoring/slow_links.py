"""Detection of slow links between the nodes of a training run, by short messages of all pairs at long intervals."""

import time
from collections.abc import Mapping
from statistics import median

from dithc.core.units import GIGA, MIB
from dithc.engine.comm import Group

MESSAGE_BYTES, MESSAGES = MIB, 3
SLOW = 0.5  # of the median of all links, or of the lowest earlier rate of the same link
MIN_LINKS = 3  # with fewer links, only earlier rates are a reference
REPEATS = 2
HISTORY = 9, 3  # earlier rates of a link: most, least
TIME_SHARE = 1e-3  # of the run, for measurements

Pair = tuple[str, str]
"""Names of two nodes in alphabetical order."""


class LinkWatch:
    """Links of a run: measures all pairs of nodes at intervals.

    Attributes:
        slow: gigabytes per second of each slow link, on every rank.
    """

    def __init__(self, group: Group) -> None:
        self._group, self._hosts = group, group.gather_objects(group.host)
        self._has_links = len(set(group.gather_objects(group.node))) > 1
        self._ended, self._interval = time.monotonic(), 0.0
        self._history: dict[Pair, list[float]] = {}
        self.slow: dict[Pair, float] = {}

    @property
    def is_due(self) -> bool:
        """Return whether the measurements have taken less than their share of the time; differs between ranks."""
        return self._has_links and time.monotonic() - self._ended >= self._interval

    def measure(self) -> list[str]:
        """Measure all links and return descriptions of newly slow ones, equal on all ranks; collective.

        A new slow link has to be slow in 1 + REPEATS measurements in sequence.
        """
        start, known = time.monotonic(), self.slow
        rates = self._rates()
        usual = {pair: min(past) for pair, past in self._history.items() if len(past) >= HISTORY[1]}
        self.slow = slow_links(rates, usual)
        for _ in range(REPEATS if self.slow.keys() - known.keys() else 0):
            again = slow_links(self._rates(), usual)
            self.slow = {pair: rate for pair, rate in again.items() if pair in self.slow}
        for pair, rate in rates.items():
            if pair not in self.slow:
                self._history[pair] = [*self._history.get(pair, []), rate][-HISTORY[0] :]
        self._ended = time.monotonic()
        self._interval = (self._ended - start) / TIME_SHARE
        middle = median(rates.values())
        return [
            f"{' - '.join(pair)} transfers {rate:.3g} GB/s; before at least {usual.get(pair, rate):.3g}, median of all links "
            f"{middle:.3g}"
            for pair, rate in self.slow.items()
            if pair not in known
        ]

    def _rates(self) -> dict[Pair, float]:
        """Return GB/s of each link, the higher rate of its two ends: a slow link is slow at both."""
        rows = self._group.gather_objects(self._group.link_rates(message_bytes=MESSAGE_BYTES, messages=MESSAGES))
        rates: dict[Pair, float] = {}
        for rank, row in enumerate(rows):
            for peer, rate in row.items():
                first, second = sorted((self._hosts[rank], self._hosts[peer]))
                rates[first, second] = max(rate / GIGA, rates.get((first, second), 0.0))
        return rates


def slow_links(rates: Mapping[Pair, float], usual: Mapping[Pair, float]) -> dict[Pair, float]:
    """Return the links with less than SLOW of the median rate, or of their usual rate, if it is known."""
    middle = median(rates.values()) if len(rates) >= MIN_LINKS else 0.0
    return {pair: rate for pair, rate in rates.items() if rate < SLOW * max(middle, usual.get(pair, 0.0))}
