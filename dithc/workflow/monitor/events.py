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
        self._previous: dict[str, StageStatus] = {}
        # Time of the next beat and the pause before it, by stage key.
        self._due: dict[str, tuple[float, float]] = {}

    def events(self, status: ExperimentStatus, *, since: float = math.inf, now: float | None = None) -> list[str]:
        """Return the events since the last call; the first call includes stages done since `since`."""
        now = time.time() if now is None else now
        events = []
        for entry in status.stages:
            text = self._event(entry, since=since)
            text = self._beat(entry, now) if text is None else text
            if text is not None:
                events.append((entry, text))
        self._previous = {entry.stage.key: entry for entry in status.stages}
        total = len(status.stages)
        count = status.count("done") - sum(entry.state == "done" for entry, _ in events)
        lines = []
        for entry, text in events:
            count += entry.state == "done"
            mark = f"[{count:>{len(str(total))}}/{total}]" if entry.state == "done" else " " * len(f"[{total}/{total}]")
            lines.append(f"{_clock(now)} {mark} {shortened(entry.stage.title, LONGEST_TITLE)}: {text}".rstrip(": "))
        return lines or self._queue(status, now)

    def _event(self, status: StageStatus, *, since: float) -> str | None:
        previous = self._previous.get(status.stage.key)
        was_done = status.state == "done" and (status.finished_at is None or status.finished_at < since)
        state = previous.state if previous is not None else "done" if was_done else "waiting"
        if status.state == "done" and (state != "done" or _is_again(previous, status)):
            took = span(max(1.0, status.seconds)) if status.seconds is not None else ""
            if status.stage.kind == "run":  # its duration includes all earlier segments
                return joined("done", f"{took} of training" if took else "", status.message)
            return joined(f"done in {took}" if took else "done", status.message)
        if status.state != state and status.state in ("failed", "stopped"):
            return f"{status.state}: {status.message}"
        return None

    def _beat(self, status: StageStatus, now: float) -> str | None:
        if status.state != "running":
            self._due.pop(status.stage.key, None)
            return None
        return joined("running", status.message) if self._is_due(status.stage.key, now) else None

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


def _is_again(previous: StageStatus | None, status: StageStatus) -> bool:
    if previous is None or previous.finished_at is None or status.finished_at is None:
        return False
    return status.finished_at - previous.finished_at > (TOUCHED_SECONDS if status.seconds is None else 0.0)


def _clock(now: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(now))
