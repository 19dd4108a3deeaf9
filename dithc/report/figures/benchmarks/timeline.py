"""The figure of a step in two memory tiers, from a plan of AutoMem: occupancy by kind, copies, stalls, budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dithc.core.logging import user_error
from dithc.core.summaries import rounded, short
from dithc.report.documents import read_json
from dithc.report.figures import theme
from dithc.report.figures.canvas import as_png, grid, nothing, styled
from dithc.report.records import ReportRecords

GIB, MIB = 1 << 30, 1 << 20
LABELS = {
    "outside": "other",
    "state": "moments, averages",
    "weights": "weights",
    "gradients": "gradients",
    "saved": "saved for backward",
    "working": "working memory of the unit",
}
HEIGHTS = (3.0, 1.3, 1.7)  # of the panels, in inches: fast, copies, slow
NO_COPIES = "no copies during this step"


class Turn(NamedTuple):
    """A forward or backward pass of a unit, or the update, from `start` to `end` seconds: a stall, then computation."""

    start: float
    end: float
    phase: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A step as a sequence of passes of a plan; `measured_peak_bytes` is the physical peak of the fast tier, if known."""

    title: str
    plan: Mapping[str, Any]
    turns: Sequence[Turn]
    measured_peak_bytes: int | None = None

    @property
    def stall(self) -> float:
        return float(sum(turn.phase["stall_seconds"] for turn in self.turns))


def read_timeline(path: Path) -> Timeline:
    """Read the timeline from the automem.json of a run or from `dithc bench automem --json`."""
    content = read_json(path)
    found = timeline_of(content, title=path.parent.name if "plan" in content else "")
    if found is None:
        raise user_error(
            f"{path} has no memory plan",
            got=f"keys {', '.join(content) or 'none'}",
            expected="automem.json of a run, or a result of `dithc bench automem` with a managed variant",
            fix="train with two tiers of memory (machine.memory), or measure `--only budget`",
        )
    return found


def timeline_of(content: Mapping[str, Any], *, title: str = "") -> Timeline | None:
    """Return the first plan of a run or of a benchmark as a timeline; None without passes."""
    settings, parts = content.get("settings", {}), (content.get("parts") or {}).values()
    rows = [row.get("memory") or {} for part in parts for row in part.get("rows", [])]
    memory = next((one for one in (content, *rows) if (one.get("plan") or {}).get("phases")), None)
    if memory is None:
        return None
    turns: list[Turn] = []
    for phase in memory["plan"]["phases"]:
        start = turns[-1].end if turns else 0.0
        turns.append(Turn(start, start + phase["stall_seconds"] + phase["seconds"], phase))
    named = "" if memory is content else f"{settings.get('model', '')}, batch {settings.get('batch', '')}"
    tiers = memory.get("tiers") or [{}]
    return Timeline(
        title=title or named, plan=memory["plan"], turns=turns, measured_peak_bytes=tiers[0].get("peak_backed_bytes")
    )


def draw_memory(facts: ReportRecords) -> bytes:
    """Draw the plan in the `dithc bench automem` result of the report."""
    found = timeline_of(facts.benches.get("automem", {}))
    return draw_timeline(found) if found else nothing("plan of memory: not run")


def draw_timeline(timeline: Timeline) -> bytes:
    """Draw fast tier, copies and slow tier on one time axis."""
    with styled():
        figure, ((fast,), (copies,), (slow,)) = grid(HEIGHTS, sharex=True)
        colours = dict(zip(LABELS, (theme.MUTED, *theme.PALETTE), strict=False))
        tiers = {name: [turn.phase[f"{name}_parts"] for turn in timeline.turns] for name in ("fast", "slow")}
        shown = [kind for kind in LABELS if any(part.get(kind) for parts in tiers.values() for part in parts)]
        for panel, (name, parts) in zip((fast, slow), tiers.items(), strict=True):
            _stack(panel, timeline.turns, parts, shown, colours)
            _limit(panel, timeline.plan[name]["budget_bytes"], over=max(sum(part.values()) for part in parts) / GIB)
        _copies(copies, timeline.turns)
        for panel in (fast, copies, slow):
            _stalls(panel, timeline)
            panel.set_xlim(0, timeline.turns[-1].end)
            panel.grid(visible=False, axis="x")
        _sections(fast, timeline)
        fast.set_title(f"Fast tier: {timeline.plan['fast']['name']}", pad=20)
        slow.set_title(f"Slow tier: {timeline.plan['slow']['name']}")
        copies.set_title("Copies by the pass in which they start: loads above, offloads below")
        for panel in (fast, slow):
            panel.set_ylabel("GiB")
        slow.set_xlabel("planned seconds of a step")
        handles = [fast.fill_between([], [], color=colours[kind], label=LABELS[kind], linewidth=0) for kind in shown]
        if timeline.stall > 0:
            handles.append(
                fast.fill_between(
                    [], [], facecolor="none", edgecolor=theme.INK, hatch="////", linewidth=0, label="stall"
                )
            )
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), labelcolor=theme.INK, fontsize=8.5
        )
        figure.suptitle(_said(timeline), fontsize=9.5, color=theme.MUTED, x=0.01, ha="left")
        return as_png(figure)


def _said(timeline: Timeline) -> str:
    seconds, phases = timeline.turns[-1].end, [turn.phase for turn in timeline.turns]
    peak = max(sum(phase["fast_parts"].values()) for phase in phases)
    loaded, offloaded = (sum(phase[f"{name}_bytes"] for phase in phases) for name in ("load", "offload"))
    words = [
        timeline.title,
        f"step {short(seconds)} s, stall {timeline.stall / (seconds or 1):.1%}",
        f"planned peak {short(peak / GIB)} GiB",
        f"loads {short(loaded / GIB)} GiB, offloads {short(offloaded / GIB)} GiB",
    ]
    if timeline.measured_peak_bytes is not None:
        words.insert(3, f"measured peak {short(timeline.measured_peak_bytes / GIB)} GiB")
    return "  ·  ".join(filter(None, words))


def _stack(
    panel: Any,
    turns: Sequence[Turn],
    parts: Sequence[Mapping[str, int]],
    kinds: Sequence[str],
    colours: Mapping[str, str],
) -> None:
    """Draw stacked areas that are constant during a pass."""
    edges = [turn.start for turn in turns] + [turns[-1].end]
    below = [0.0] * len(edges)
    for kind in kinds:
        values = [part.get(kind, 0) / GIB for part in parts]
        above = [low + value for low, value in zip(below, [*values, values[-1]], strict=True)]
        panel.fill_between(edges, below, above, step="post", color=colours[kind], linewidth=0)
        below = above
    panel.set_ylim(0, max(below) * 1.12 or 1.0)


def _limit(panel: Any, budget_bytes: int | None, *, over: float) -> None:
    """Draw the budget as a line if it is close to the used memory."""
    if budget_bytes is None or budget_bytes / GIB > 3 * over:
        return
    budget = budget_bytes / GIB
    panel.axhline(budget, color=theme.INK, linewidth=1.2, linestyle=(0, (4, 3)))
    panel.annotate(
        f"budget {rounded(budget, digits=3)} GiB", (1, budget), xycoords=("axes fraction", "data"), xytext=(-4, 3),
        textcoords="offset points", fontsize=8, color=theme.INK, ha="right", va="bottom",
    )  # fmt: skip
    panel.set_ylim(0, max(over, budget) * 1.18)


def _copies(panel: Any, turns: Sequence[Turn]) -> None:
    """Draw loads above the line, offloads below."""
    most = max(turn.phase[name] for turn in turns for name in ("load_bytes", "offload_bytes")) / MIB
    panel.axhline(0, color=theme.MUTED, linewidth=0.8)
    if not most:
        panel.annotate(NO_COPIES, (0.5, 0.62), xycoords="axes fraction", ha="center", color=theme.MUTED, style="italic")
        panel.set_yticks([])
        return
    starts, widths = [turn.start for turn in turns], [turn.end - turn.start for turn in turns]
    for name, sign, colour in (("load_bytes", 1, theme.INK), ("offload_bytes", -1, theme.MUTED)):
        heights = [sign * turn.phase[name] / MIB for turn in turns]
        panel.bar(starts, heights, width=widths, align="edge", color=colour, linewidth=0)
    panel.set_ylim(-most * 1.15, most * 1.15)
    panel.set_ylabel("MiB")
    panel.yaxis.set_major_formatter(lambda value, _: short(abs(value)))


def _stalls(panel: Any, timeline: Timeline) -> None:
    for turn in timeline.turns:
        stall = turn.phase["stall_seconds"]
        if stall > 0:
            panel.axvspan(
                turn.start, turn.start + stall, facecolor="none", edgecolor=theme.INK, hatch="////", linewidth=0
            )


def _sections(panel: Any, timeline: Timeline) -> None:
    """Label forward, backward and update above the panel."""
    for kind in ("forward", "backward", "update"):
        own = [turn for turn in timeline.turns if turn.phase["kind"] == kind]
        if not own:
            continue
        first, last = own[0].start, own[-1].end
        if first > 0:
            panel.axvline(first, color=theme.INK, linewidth=0.8, alpha=0.6)
        narrow = last - first < 0.06 * timeline.turns[-1].end
        panel.annotate(
            kind, (last if narrow else (first + last) / 2, 1), xycoords=("data", "axes fraction"), xytext=(0, 4),
            textcoords="offset points", fontsize=8.5, color=theme.MUTED, ha="right" if narrow else "center", va="bottom",
        )  # fmt: skip
