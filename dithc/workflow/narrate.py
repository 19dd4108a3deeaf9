"""What happens in an experiment, as lines: what starts, ends and fails between two looks, and how far the rest is."""

import math
import time

from dithc.workflow.progress import Status
from dithc.workflow.standing import Standing, joined, span

MINUTE = 60.0


class Narrator:
    """Tells each thing once.

    Args:
        minutely: also a line a minute for each stage that runs, and for those that start and queue; for logs, which are not
            drawn again.
    """

    def __init__(self, *, minutely: bool) -> None:
        self.minutely = minutely
        self._before: dict[str, Standing] = {}
        self._said: dict[str, float] = {}

    def events(self, status: Status, *, since: float = math.inf, now: float | None = None) -> list[str]:
        """What has happened since the last call; of the first call, what runs, and what was done at or after `since`."""
        now = time.time() if now is None else now
        lines = []
        done = f"{status.count('done')} of {len(status.standings)}"
        for one in status.standings:
            words = self._event(one, done=done, since=since)
            if words is None and one.state == "running" and now - self._said.get(one.stage.key, now) >= MINUTE:
                words = one.words if self.minutely else None
            if words is not None:
                self._said[one.stage.key] = now
                lines.append(
                    f"{time.strftime('%H:%M:%S', time.localtime(now))} {one.stage.title}: {words}".rstrip(": ")
                )
            self._before[one.stage.key] = one
        return lines

    def _event(self, one: Standing, *, done: str, since: float) -> str | None:
        before = self._before.get(one.stage.key)
        was_done = one.state == "done" and (one.when is None or one.when < since)
        state = before.state if before is not None else "done" if was_done else "waiting"
        if one.state == "done" and (state != "done" or (before is not None and before.when != one.when)):
            took = (
                f"done in {span(max(1.0, one.seconds))}"
                if one.seconds is not None and one.stage.kind != "run"
                else "done"
            )
            return f"{joined(took, one.words)} ({done})"
        if one.state == state:
            return None
        if one.state in ("failed", "stopped"):
            return f"{one.state}: {one.words}"
        if one.state in ("running", "queued") and self.minutely:
            return joined("started" if one.state == "running" else "queued", one.words)
        return None
