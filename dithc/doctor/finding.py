"""One thing the doctor found."""

from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was looked at, how it is, and what to do.

    Attributes:
        level: ok; warn, something is off or slower than need be; bad, work will fail or be wrong.
        topic: a word or two.
        text: what was found, one or several lines.
        details: more of it, for whoever asks.
        fix: what to do; empty when there is nothing to do.
        facts: the same for programs, JSON values only.
    """

    level: Level
    topic: str
    text: str
    details: str = ""
    fix: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
