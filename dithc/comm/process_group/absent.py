"""Ranks that others wait for in a collective: who they are, said early, and named when the wait is given up.

A rank that waits for long says in which collective, in the store where the ranks of torch.distributed met; who has not come as
far is named. The store is a thread of one rank, which may be the one that is stopped, so nobody waits long for its answer.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dithc.comm.process_group.service import Job
from dithc.log import logger

log = logger(__name__)

# A rank that waits for so long says so; ranks come to a collective some time apart, so others ask later.
SAY_AFTER_SECONDS = 2.0
# After this share of the limit it is asked who is missing, and again after as long.
ASK_AFTER, MOST_SECONDS_TO_ASK = 1 / 4, 60.0
ANSWER_SECONDS = 5.0


class Absent:
    """Who is missing in the collectives of a group; `look` is called now and then by the thread that waits."""

    def __init__(self, store: Any, *, rank: int, size: int, keeper: int | None, describe: Callable[[int], str]) -> None:
        """Makes the list of the group; none without a store.

        Args:
            store: of torch.distributed, for this group alone; None for none.
            rank: of this process in the group.
            size: of the group.
            keeper: the rank of the group whose process keeps the store; None where it is of another group.
            describe: what is known of the process of a rank of the group.
        """
        self._store, self._rank, self._size = store, rank, size
        self._keeper, self._describe = keeper, describe
        self._said = 0  # the collective in which this rank has said that it waits
        self._asked: tuple[int, float] = (0, 0.0)

    def look(self, jobs: Sequence[Job]) -> None:
        """Looks at the collective that is waited for, the first of `jobs` that has its turn."""
        job = next((job for job in jobs if job.number is not None), None)
        if job is None or job.number is None or job.waiting_since is None or self._store is None:
            return
        now = time.monotonic()
        waited = now - job.waiting_since
        if waited > SAY_AFTER_SECONDS and self._said < job.number:
            self._said = job.number
            _within(0.0, lambda: self._store.set(_key(self._rank), str(self._said)))
        pause = min(ASK_AFTER * job.timeout_seconds, MOST_SECONDS_TO_ASK)
        number, asked = self._asked
        if now - (asked if number == job.number else job.waiting_since) > max(pause, 2 * SAY_AFTER_SECONDS):
            self._asked = (job.number, now)
            missing, job.missing = self._missing(job.number)
            if number != job.number and self._speaks(missing):
                words = (job.name, f"{waited:.0f}", job.missing, job.timeout_seconds)
                log.warning("%s: waiting for %s s for %s; gives up after %g s", *words)

    def _speaks(self, missing: Sequence[int]) -> bool:
        """Whether this rank is the first of those that wait: one line is enough."""
        return self._rank == next((rank for rank in range(self._size) if rank not in missing), self._rank)

    def _missing(self, number: int) -> tuple[list[int], str]:
        """The ranks that have not said that they wait in a collective of this number or a later one, also in words."""
        answer = _within(ANSWER_SECONDS, lambda: [self._number_of(rank) for rank in range(self._size)])
        if answer is None:
            who = "rank 0 of all" if self._keeper is None else self._describe(self._keeper)
            return [self._keeper or 0], f"{who}, which does not answer"
        missing = [rank for rank, said in enumerate(answer) if said < number and rank != self._rank]
        return missing, ", ".join(
            map(self._describe, missing)
        ) or "ranks that all have come: what they send does not arrive"

    def _number_of(self, rank: int) -> int:
        return int(self._store.get(_key(rank))) if self._store.check([_key(rank)]) else 0


def _key(rank: int) -> str:
    return f"dithc waits {rank}"


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """What a call returns, in a thread of its own; None where it has not returned in time, or has failed."""
    found: list[Any] = []

    def run() -> None:
        with suppress(Exception):  # a store whose rank has ended
            found.append(call())

    thread = threading.Thread(target=run, name="dithc-absent", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
