"""Finding of the doctor."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        level: ok; warn, a part is defective or slow; bad, work will fail or be wrong.
        text: result, one or several lines.
        details: further lines for `--verbose`.
        fix: imperative; empty without a problem.
        facts: the same for programs, as JSON values.
    """

    level: Level
    topic: str
    text: str
    _: KW_ONLY
    details: str = ""
    fix: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
