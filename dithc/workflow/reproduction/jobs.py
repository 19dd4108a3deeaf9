"""Cell of a target: a dithc command with its purpose and predicted cost."""

from dataclasses import dataclass, field
from typing import Any

from dithc.core.artifacts import digest

OUT = "{out}"


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """A cell of a target, at a row and columns of its table: one job of the workflow.

    Attributes:
        name: unique within the target, part of a file name.
        words: arguments of `dithc`; `{out}` is the path of its JSON output.
        seconds, memory_gib: prediction; 0 GiB if small, or if the kernel enforces a limit.
        measures: whether it is timed, and therefore runs alone.
        nodes, ranks: size of a launch by the scheduler; 1 rank if the cell starts its ranks.
        after: names of earlier cells of this target.
        tuning: folder of tuned products.
        metadata: values for readers of the result.
        skipped: reason for not running.
    """

    target: str = ""
    name: str
    words: tuple[str, ...]
    row: str
    columns: tuple[str, ...]
    seconds: float
    memory_gib: float = 0.0
    measures: bool = True
    nodes: int = 1
    ranks: int = 1
    after: tuple[str, ...] = ()
    tuning: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""

    @property
    def command(self) -> str:
        output = f"{self.name}.json"
        prefix = f"DITHC_TUNING_FOLDER=tuning/{self.tuning} " if self.tuning else ""
        return prefix + " ".join(("dithc", *(output if word == OUT else word for word in self.words)))

    @property
    def digest(self) -> str:
        """Digest of all settings that determine the measurement."""
        return digest({"words": list(self.words), "tuning": self.tuning, "after": list(self.after)})
