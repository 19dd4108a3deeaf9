"""Events of an experiment as lines: stages that end, fail or still run."""

import math
import time

from dithc.workflow.monitor.experiment_status import ExperimentStatus
from dithc.workflow.monitor.stage_status import StageStatus, joined, span
from dithc.workflow.monitor.text_width import shortened

BEAT_SECONDS, LONGEST_BEAT_SECONDS = 60.0, 1800.0
LONGEST_TITLE = 48
TOUCHED_SECONDS = 60.0  # Snakemake touches an output after its job; a shorter time without a record is not a rebuild


class EventReporter:
    """Reporter of each event, once.

    With `beats`, it also reports running stages: after a minute, then at pauses that double up to half an hour, for log files.
    """

    def __init__(self, *, beats: bool) -> None:
        self.beats = beats
        self._before: dict[str, StageStatus] = {}
        # Time of the next beat and the pause before it, by stage key.
        self._due: dict[str, tuple[float, float]] = {}

    def events(self, status: ExperimentStatus, *, since: float = math.inf, now: float | None = None) -> list[str]:
        """Return the events since the last call; the first call includes stages done since `since`."""
        now = time.time() if now is None else now
        events = []
        for one in status.standings:
            words = self._event(one, since=since)
            words = self._beat(one, now) if words is None else words
            if words is not None:
                events.append((one, words))
        self._before = {one.stage.key: one for one in status.standings}
        total = len(status.standings)
        done = status.count("done") - sum(one.state == "done" for one, _ in events)
        lines = []
        for one, words in events:
            done += one.state == "done"
            place = f"[{done:>{len(str(total))}}/{total}]" if one.state == "done" else " " * len(f"[{total}/{total}]")
            lines.append(f"{_clock(now)} {place} {shortened(one.stage.title, LONGEST_TITLE)}: {words}".rstrip(": "))
        return lines or self._queue(status, now)

    def _event(self, one: StageStatus, *, since: float) -> str | None:
        before = self._before.get(one.stage.key)
        was_done = one.state == "done" and (one.when is None or one.when < since)
        state = before.state if before is not None else "done" if was_done else "waiting"
        if one.state == "done" and (state != "done" or _is_again(before, one)):
            took = span(max(1.0, one.seconds)) if one.seconds is not None else ""
            if one.stage.kind == "run":  # its duration includes all earlier segments
                return joined("done", f"{took} of training" if took else "", one.words)
            return joined(f"done in {took}" if took else "done", one.words)
        if one.state != state and one.state in ("failed", "stopped"):
            return f"{one.state}: {one.words}"
        return None

    def _beat(self, one: StageStatus, now: float) -> str | None:
        if one.state != "running":
            self._due.pop(one.stage.key, None)
            return None
        return joined("running", one.words) if self._is_due(one.stage.key, now) else None

    def _queue(self, status: ExperimentStatus, now: float) -> list[str]:
        if status.count("running") or not status.count("queued"):
            self._due.pop("", None)
            return []
        return [f"{_clock(now)} {status.summary()}"] if self._is_due("", now) else []

    def _is_due(self, key: str, now: float) -> bool:
        due, pause = self._due.setdefault(key, (now + BEAT_SECONDS, BEAT_SECONDS))
        if not self.beats or now < due:
            return False
        pause = min(2 * pause, LONGEST_BEAT_SECONDS)
        self._due[key] = (now + pause, pause)
        return True


def _is_again(before: StageStatus | None, one: StageStatus) -> bool:
    if before is None or before.when is None or one.when is None:
        return False
    return one.when - before.when > (TOUCHED_SECONDS if one.seconds is None else 0.0)


def _clock(now: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(now))
