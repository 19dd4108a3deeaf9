"""Timeline of a training step in two memory tiers, from a plan of AutoMem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dithc.log import problem
from dithc.report.documents import read_json

KINDS = ("outside", "state", "weights", "gradients", "saved", "working")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A forward or backward pass of a unit, or the update: a stall, then computation.

    Attributes:
        start: start of the stall, in seconds of the step.
        stall, seconds: seconds of stalling and of computing.
        fast, slow: peak bytes in each tier by kind.
        loaded, offloaded: bytes of copies into and out of the fast tier that start in this pass.
    """

    kind: str
    start: float
    stall: float
    seconds: float
    fast: Mapping[str, int]
    slow: Mapping[str, int]
    loaded: int
    offloaded: int

    @property
    def end(self) -> float:
        """Start of the next pass, in seconds."""
        return self.start + self.stall + self.seconds


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A step as a sequence of passes.

    Attributes:
        fast, slow: names of the tiers.
        budget_bytes: limit of the fast tier; None for none.
        measured_peak_bytes: physical peak of the fast tier; None if not measured.
    """

    title: str
    fast: str
    slow: str
    budget_bytes: int | None
    slow_budget_bytes: int | None
    turns: tuple[Turn, ...]
    measured_peak_bytes: int | None = None

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.turns[-1].end

    @property
    def stall(self) -> float:
        """Stalled seconds of the step."""
        return sum(turn.stall for turn in self.turns)


def read_timeline(path: Path) -> Timeline:
    """Read the timeline from the automem.json of a run or from `dithc bench automem --json`.

    Raises:
        UserError: the file has no plan.
    """
    content = read_json(path)
    found = timeline_of(content, title=path.parent.name if "plan" in content else "")
    if found is None:
        raise problem(
            f"{path} has no memory plan",
            got=f"keys {', '.join(content) or 'none'}",
            expected="automem.json of a run, or a result of `dithc bench automem` with a managed variant",
            fix="train with two tiers of memory (machine.memory), or measure `--only budget`",
        )
    return found


def timeline_of(content: Mapping[str, Any], *, title: str = "") -> Timeline | None:
    """Return the first plan of a document as a timeline; None without passes."""
    memory = _memory(content)
    if memory is None:
        return None
    plan, tiers = memory["plan"], memory.get("tiers") or [{}]
    turns: list[Turn] = []
    for phase in plan["phases"]:
        turns.append(
            Turn(
                kind=phase["kind"],
                start=turns[-1].end if turns else 0.0,
                stall=phase["stall_seconds"],
                seconds=phase["seconds"],
                fast=phase["fast_parts"],
                slow=phase["slow_parts"],
                loaded=phase["load_bytes"],
                offloaded=phase["offload_bytes"],
            )
        )
    return Timeline(
        title=title or memory.get("title", ""),
        fast=plan["fast"]["name"],
        slow=plan["slow"]["name"],
        budget_bytes=plan["fast"]["budget_bytes"],
        slow_budget_bytes=plan["slow"]["budget_bytes"],
        turns=tuple(turns),
        measured_peak_bytes=tiers[0].get("peak_backed_bytes"),
    )


def _memory(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the part with a plan: the document itself, or a row of a benchmark."""
    if (content.get("plan") or {}).get("phases"):
        return content
    parts: Sequence[Mapping[str, Any]] = list((content.get("parts") or {}).values())
    for part in parts:
        for row in part.get("rows", []):
            if ((row.get("memory") or {}).get("plan") or {}).get("phases"):
                settings = content.get("settings", {})
                return {**row["memory"], "title": f"{settings.get('model', '')}, batch {settings.get('batch', '')}"}
    return None
