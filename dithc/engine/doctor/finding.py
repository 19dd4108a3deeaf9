"""Finding of the doctor."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class CheckResult:
    """Result of a check. `warning`: a part is defective or slow; `error`: work will fail or be wrong.

    `details` are further lines for `--verbose`, `properties` the text as JSON values for programs. `fix` is an imperative.
    """

    level: Level
    topic: str
    text: str
    _: KW_ONLY
    details: str = ""
    fix: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
