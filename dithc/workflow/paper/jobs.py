"""A cell: one command of dithc, what it is for, and what it is predicted to cost."""

from dataclasses import dataclass, field
from typing import Any

from dithc.runs import digest

OUT = "{out}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell of a target, which is one job of the workflow.

    Attributes:
        target: one of the paper's tables and figures.
        name: of the cell, part of a file's name.
        words: arguments of `dithc`; `{out}` stands for the JSON file that it writes.
        row, columns: of the table, of the numbers that come of it.
        seconds: that it is predicted to take.
        memory_gib: that it is predicted to take; 0 where a limit of the kernel's decides, or it is small.
        measures: whether it times something, so that nothing may run beside it.
        nodes, ranks: that it is launched on, where a scheduler starts ranks on nodes that are elsewhere.
        after: names of cells of this target that come first.
        tuning: name of the folder of tuned products that it writes or reads; empty for none.
        facts: what whoever reads the result wants to know.
        skipped: why it does not run; empty where it does.
    """

    target: str
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
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""

    @property
    def command(self) -> str:
        """The line that makes this cell alone."""
        shown = f"{self.name}.json"
        prefix = f"DITHC_TUNING=tuning/{self.tuning} " if self.tuning else ""
        return prefix + " ".join(("dithc", *(shown if word == OUT else word for word in self.words)))

    @property
    def digest(self) -> str:
        """Of all that decides what is measured."""
        return digest({"words": list(self.words), "tuning": self.tuning, "after": list(self.after)})
