"""Finding of the doctor."""

from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of a check.

    Attributes:
        level: ok; warn, a part is defective or slow; bad, work will fail or be wrong.
        topic: a word or two.
        text: result, one or several lines.
        details: further lines for `--verbose`.
        fix: imperative; empty without a problem.
        facts: the same for programs, as JSON values.
    """

    level: Level
    topic: str
    text: str
    details: str = ""
    fix: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
