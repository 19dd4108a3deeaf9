"""Snakemake as a child process: log file, signal forwarding, extraction of dithc's messages."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from dithc.core.processes import descendants
from dithc.workflow.monitor.log_tail import tail
from dithc.workflow.monitor.text_width import cut, folded
from dithc.workflow.monitor.warnings import LONGEST, MESSAGE, WarningCollector

USER_ERROR = "UserError in file "
SNAKEMAKE_ERROR = re.compile(r"\w*(Exception|Error)\b")
LAST_LINES = 20
SAME_SIGNAL_SECONDS = 0.1  # schedulers and `timeout` send a signal twice: to a process and to its group
COMMAND_END = re.compile(r"(?:died with <Signals\.(\w+): \d+>|returned non-zero exit status (\d+))\.$")
JOB_LOG = re.compile(r"    log: (\S+)")
BY_SIGNAL = 128  # shell status of a command ended by a signal: this plus the signal number


class SnakemakeProcess:
    """Snakemake in a `with` block, whose end does not end Snakemake. It writes the file `log` itself, to outlive this process.

    Snakemake has a separate process group. Ctrl-C and SIGHUP reach it and its jobs once, as from a terminal. SIGTERM reaches
    Snakemake alone, which then waits for its jobs. A second signal kills the jobs, and Snakemake unlocks its folder.
    `stopped_by` is the first forwarded signal; `notices` are messages about signals, which the caller removes.
    """

    def __init__(self, arguments: Sequence[str], *, log: Path) -> None:
        self.argv = [str(Path(sys.executable).parent / "snakemake"), *arguments]
        self.log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._offset = 0
        self.stopped_by: str | None = None
        self.notices = list[str]()
        self._stopped_at = self._killed_at = 0.0

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._handlers[number] = signal.signal(number, self._forward)
        with self.log.open("wb") as file:
            self._child = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, process_group=0
            )
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def status(self) -> int | None:
        """Exit status, 128 + n after signal n; None while it runs."""
        assert self._child is not None
        code = self._child.poll()
        return BY_SIGNAL - code if code is not None and code < 0 else code

    def new_lines(self) -> list[str]:
        """Return the complete lines since the last call; after the end, all remaining text."""
        has_ended = self.status is not None
        with self.log.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data if has_ended else data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.decode(errors="replace").splitlines()

    def fault(self) -> list[str]:
        """Return the four-line dithc error that ended Snakemake before its first job; empty without one."""
        lines = self.log.read_text(errors="replace").splitlines()
        begin = next((number for number, line in enumerate(lines, start=1) if line.startswith(USER_ERROR)), len(lines))
        message = lines[begin:]
        end = next((number for number, line in enumerate(message) if line.startswith('  File "')), len(message))
        return [f"error: {message[0]}", *message[1:end]] if message else []

    def last_lines(self) -> list[str]:
        lines = tail(self.log)
        errors = [number for number, line in enumerate(lines) if SNAKEMAKE_ERROR.match(line)]
        return lines[errors[-1] if errors else 0 :][-LAST_LINES:]

    def ended(self) -> dict[str, str]:
        """Return the end of each failed job's command (`SIGKILL`, `status 2`) by the path of its log."""
        ending, endings = "", dict[str, str]()
        for line in self.log.read_text(errors="replace").splitlines():
            if (end := COMMAND_END.search(line)) is not None:
                ending = end.group(1) or _status_words(int(end.group(2)))
            elif ending and (log := JOB_LOG.match(line)) is not None:
                endings[log.group(1)], ending = ending, ""
        return endings

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._child is None or self._child.poll() is not None:
            return
        name, now = signal.Signals(number).name, time.monotonic()
        if self.stopped_by is None:
            self.stopped_by, self._stopped_at = name, now
            is_waiting = number == signal.SIGTERM
            effect = "no further stage starts, and running stages end first" if is_waiting else "running stages stop"
            self.notices.append(f"{name}: {effect}; to kill them now: kill {os.getpid()}, or Ctrl-C")
            (os.kill if is_waiting else os.killpg)(self._child.pid, number)
        elif not self._killed_at and now > self._stopped_at + SAME_SIGNAL_SECONDS:
            self._killed_at = now
            self.notices.append(f"{name}, the second signal: killing running stages; saved checkpoints are kept")
            if self.stopped_by == "SIGTERM":
                os.kill(self._child.pid, signal.SIGINT)  # Snakemake cancels jobs of a scheduler
            for pid in descendants(self._child.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _status_words(status: int) -> str:
    try:
        return signal.Signals(status - BY_SIGNAL).name
    except ValueError:
        return f"status {status}"


class OutputFilter:
    """Filter of Snakemake's output for the user: driver messages, and each kind of stage warning once.

    `has_error` if the driver reported an error; `driver` counts the driver's warnings.
    """

    def __init__(self, *, width: int | None = None) -> None:
        self.has_error, self.width = False, width
        self.driver = WarningCollector()
        self._stages = WarningCollector()
        self._is_shown = self._is_driver = False

    def of(self, lines: Sequence[str]) -> list[str]:
        """Return the lines to show, each with its indented continuation."""
        output = []
        for line in lines:
            if (match := MESSAGE.match(line)) is not None:
                self._is_shown = self._is_wanted(match.group(1), match.group(2) or "", line)
            elif not line.startswith("  "):
                self._is_shown = False
            if self._is_shown:
                output.append(line if self._is_driver else cut(line, LONGEST))
        return folded(output, width=self.width)

    def _is_wanted(self, package: str, level: str, line: str) -> bool:
        self._is_driver = package == "workflow"
        if not self._is_driver:
            return self._stages.add(line)
        self.has_error |= level.startswith("error")
        self.driver.add(line)
        return True
