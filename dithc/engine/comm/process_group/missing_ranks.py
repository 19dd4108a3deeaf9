"""Detection of ranks missing from a collective. Logs them early and names them in the timeout error.

A rank that waits for long records the number of the collective in the store of torch.distributed. Ranks with a lower
number are missing. The store is a thread of one rank, which may itself be stopped, so queries have a short timeout.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dithc.core.logging import get_logger
from dithc.engine.comm.process_group.progress_thread import CommOperation

log = get_logger(__name__)

# Waiting time before a rank records that it waits. Ranks arrive at a collective at different times, so the query for
# missing ranks follows later.
RECORD_AFTER_SECONDS = 2.0
# Share of the timeout after which missing ranks are queried, and the interval of further queries.
QUERY_AFTER, MAX_QUERY_SECONDS = 1 / 4, 60.0
STORE_TIMEOUT_SECONDS = 5.0


class MissingRankDetector:
    """Monitor of ranks missing from the collectives of a group; the waiting thread calls `check` periodically."""

    def __init__(
        self, store: Any, rank: int, size: int, store_rank: int | None, describe: Callable[[int], str]
    ) -> None:
        """Initialize the monitor of a group, with its part of the store of torch.distributed; inactive without a store.

        `store_rank` is the rank whose process hosts the store, None outside of the group; `describe` describes a rank.
        """
        self._store, self._rank, self._size = store, rank, size
        self._store_rank, self._describe = store_rank, describe
        self._recorded = 0  # number of the last collective for which this rank has recorded that it waits
        self._last_query: tuple[int, float] = (0, 0.0)

    def check(self, operations: Sequence[CommOperation]) -> None:
        """Check the collective that is waited for: the first of `operations` that has a number."""
        head = next((item for item in operations if item.number is not None), None)
        if head is None or head.number is None or head.waiting_since is None or self._store is None:
            return
        now = time.monotonic()
        waited = now - head.waiting_since
        if waited > RECORD_AFTER_SECONDS and self._recorded < head.number:
            self._recorded = head.number
            _call_within(0.0, lambda: self._store.set(_key(self._rank), str(self._recorded)))
        pause = min(QUERY_AFTER * head.timeout_seconds, MAX_QUERY_SECONDS)
        number, query_time = self._last_query
        if now - (query_time if number == head.number else head.waiting_since) > max(pause, 2 * RECORD_AFTER_SECONDS):
            self._last_query = (head.number, now)
            missing, head.missing = self._missing(head.number)
            logging_rank = next((rank for rank in range(self._size) if rank not in missing), self._rank)
            if number != head.number and self._rank == logging_rank:  # one of the waiting ranks logs
                values = (head.name, f"{waited:.0f}", head.missing, head.timeout_seconds)
                log.warning("%s: waiting for %s s for %s; gives up after %g s", *values)

    def _missing(self, number: int) -> tuple[list[int], str]:
        """Return the ranks without a record for this or a later collective, and their description."""
        numbers = _call_within(STORE_TIMEOUT_SECONDS, lambda: [self._number_of(rank) for rank in range(self._size)])
        if numbers is None:
            host = "rank 0 of the world" if self._store_rank is None else self._describe(self._store_rank)
            return [self._store_rank or 0], f"{host}, which does not respond"
        missing = [rank for rank, recorded in enumerate(numbers) if recorded < number and rank != self._rank]
        described = ", ".join(map(self._describe, missing))
        return missing, described or "no missing rank: all have arrived, but their messages do not"

    def _number_of(self, rank: int) -> int:
        return int(self._store.get(_key(rank))) if self._store.check([_key(rank)]) else 0


def _key(rank: int) -> str:
    return f"dithc waits {rank}"


def _call_within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return the result of a call in a separate thread; None if it failed or did not return in time."""
    results: list[Any] = []

    def run() -> None:
        with suppress(Exception):  # the rank of the store has ended
            results.append(call())

    thread = threading.Thread(target=run, name="dithc-missing", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
