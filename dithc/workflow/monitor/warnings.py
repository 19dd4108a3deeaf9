"""Warnings of stages, grouped by kind: numbers and digests are ignored."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from dithc.core.integrity import require_regular_file

MESSAGE = re.compile(r"(?:r\d+ \| )?\d\d:\d\d:\d\d ([^:]+): (warning: |error: )?")
LONGEST = 320  # printed characters of a warning; the log contains the full text
VARIABLE_WORDS = re.compile(r"\b(?=\w*\d)[\w.,-]*\w")  # words that contain a digit: counts, digests, steps


def kind_of(text: str) -> str:
    """Return a warning without its distinguishing numbers and digests."""
    return VARIABLE_WORDS.sub("#", text)


@dataclass
class WarningGroup:
    """One kind of warning: its first text, the titles of its stages, and the number of occurrences."""

    text: str
    stages: list[str] = field(default_factory=list)
    count: int = 0


class WarningCollector:
    """Warnings by kind, in order of first occurrence."""

    def __init__(self) -> None:
        self._kinds: dict[str, WarningGroup] = {}

    def add(self, line: str, *, stage: str = "") -> bool:
        """Count a log line; return whether it is the first warning of its kind."""
        match = MESSAGE.match(line)
        if match is None or match.group(2) != "warning: ":
            return False
        text = f"{match.group(1)}: {line[match.end() :]}"
        kind = self._kinds.setdefault(kind_of(text), WarningGroup(text))
        kind.count += 1
        if stage and stage not in kind.stages:
            kind.stages.append(stage)
        return kind.count == 1

    def read(self, log: Path, *, stage: str) -> None:
        """Count the warnings in a stage's log; an unreadable log has none."""
        try:
            with require_regular_file(log).open(errors="replace") as lines:
                for line in lines:
                    self.add(line.rstrip("\n"), stage=stage)
        except OSError:
            return

    def kinds(self) -> list[WarningGroup]:
        return list(self._kinds.values())
