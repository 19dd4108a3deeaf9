"""The figure of a step in two memory tiers, from a plan of AutoMem: occupancy by kind, copies, stalls, budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dithc.core.logging import user_error
from dithc.core.measurements import rounded, short
from dithc.core.units import GIB, MIB
from dithc.report.documents import read_json
from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, grid, placeholder
from dithc.report.records import ReportRecords

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


class PhaseSpan(NamedTuple):
    """A forward or backward pass of a unit, or the update, from `start` to `end` seconds: a stall, then computation."""

    start: float
    end: float
    phase: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A step as a sequence of passes of a plan; `measured_peak_bytes` is the physical peak of the fast tier, if known."""

    title: str
    plan: Mapping[str, Any]
    spans: Sequence[PhaseSpan]
    measured_peak_bytes: int | None = None

    @property
    def stall(self) -> float:
        return float(sum(span.phase["stall_seconds"] for span in self.spans))


def read_timeline(path: Path) -> Timeline:
    """Read the timeline from the automem.json of a run or from `dithc bench automem --json`."""
    content = read_json(path)
    timeline = timeline_of(content, title=path.parent.name if "plan" in content else "")
    if timeline is None:
        raise user_error(
            f"{path} has no memory plan",
            got=f"keys {', '.join(content) or 'none'}",
            expected="automem.json of a run, or a result of `dithc bench automem` with a managed variant",
            fix="train with two tiers of memory (machine.memory), or measure `--parts budget`",
        )
    return timeline


def timeline_of(content: Mapping[str, Any], *, title: str = "") -> Timeline | None:
    """Return the first plan of a run or of a benchmark as a timeline; None without passes."""
    settings, parts = content.get("settings", {}), (content.get("parts") or {}).values()
    rows = [row.get("memory") or {} for part in parts for row in part.get("rows", [])]
    memory = next((item for item in (content, *rows) if (item.get("plan") or {}).get("phases")), None)
    if memory is None:
        return None
    spans: list[PhaseSpan] = []
    for phase in memory["plan"]["phases"]:
        start = spans[-1].end if spans else 0.0
        spans.append(PhaseSpan(start, start + phase["stall_seconds"] + phase["seconds"], phase))
    label = "" if memory is content else f"{settings.get('model', '')}, batch {settings.get('batch', '')}"
    tiers = memory.get("tiers") or [{}]
    peak = tiers[0].get("peak_backed_bytes")
    return Timeline(title=title or label, plan=memory["plan"], spans=spans, measured_peak_bytes=peak)


def draw_memory(records: ReportRecords) -> Figure:
    """Draw the plan in the `dithc bench automem` result of the report."""
    timeline = timeline_of(records.benches.get("automem", {}))
    return draw_timeline(timeline) if timeline else placeholder("plan of memory: not run")


def draw_timeline(timeline: Timeline) -> Figure:
    """Draw fast tier, copies and slow tier on one time axis."""
    figure, ((fast,), (copies,), (slow,)) = grid(HEIGHTS, sharex=True)
    colors = dict(zip(LABELS, (theme.MUTED, *theme.PALETTE), strict=False))
    tiers = {name: [span.phase[f"{name}_parts"] for span in timeline.spans] for name in ("fast", "slow")}
    kinds = [kind for kind in LABELS if any(part.get(kind) for parts in tiers.values() for part in parts)]
    for panel, (name, parts) in zip((fast, slow), tiers.items(), strict=True):
        _draw_parts(panel, timeline.spans, parts, kinds, colors)
        _draw_budget(panel, timeline.plan[name]["budget_bytes"], over=max(sum(part.values()) for part in parts) / GIB)
    _draw_copies(copies, timeline.spans)
    for panel in (fast, copies, slow):
        _draw_stalls(panel, timeline)
        panel.set_xlim(0, timeline.spans[-1].end)
        panel.grid(visible=False, axis="x")
    _label_sections(fast, timeline)
    fast.set_title(f"Fast tier: {timeline.plan['fast']['name']}", pad=20)
    slow.set_title(f"Slow tier: {timeline.plan['slow']['name']}")
    copies.set_title("Copies by the pass in which they start: loads above, offloads below")
    for panel in (fast, slow):
        panel.set_ylabel("GiB")
    slow.set_xlabel("planned seconds of a step")
    handles = [fast.fill_between([], [], color=colors[kind], label=LABELS[kind], linewidth=0) for kind in kinds]
    if timeline.stall > 0:
        handles.append(
            fast.fill_between([], [], facecolor="none", edgecolor=theme.INK, hatch="////", linewidth=0, label="stall")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), labelcolor=theme.INK, fontsize=8.5)
    figure.suptitle(_summary(timeline), fontsize=9.5, color=theme.MUTED, x=0.01, ha="left")
    return figure


def _summary(timeline: Timeline) -> str:
    seconds, phases = timeline.spans[-1].end, [span.phase for span in timeline.spans]
    peak = max(sum(phase["fast_parts"].values()) for phase in phases)
    loads, offloads = (sum(phase[f"{name}_bytes"] for phase in phases) for name in ("load", "offload"))
    parts = [
        timeline.title,
        f"step {short(seconds)} s, stall {timeline.stall / (seconds or 1):.1%}",
        f"planned peak {short(peak / GIB)} GiB",
        f"loads {short(loads / GIB)} GiB, offloads {short(offloads / GIB)} GiB",
    ]
    if timeline.measured_peak_bytes is not None:
        parts.insert(3, f"measured peak {short(timeline.measured_peak_bytes / GIB)} GiB")
    return "  ·  ".join(filter(None, parts))


def _draw_parts(
    panel: Any,
    spans: Sequence[PhaseSpan],
    parts: Sequence[Mapping[str, int]],
    kinds: Sequence[str],
    colors: Mapping[str, str],
) -> None:
    """Draw stacked areas that are constant during a pass."""
    edges = [span.start for span in spans] + [spans[-1].end]
    below = np.zeros(len(edges))
    for kind in kinds:
        above = below + np.array([part.get(kind, 0) for part in [*parts, parts[-1]]]) / GIB
        panel.fill_between(edges, below, above, step="post", color=colors[kind], linewidth=0)
        below = above
    panel.set_ylim(0, float(below.max()) * 1.12 or 1.0)


def _draw_budget(panel: Any, budget_bytes: int | None, *, over: float) -> None:
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


def _draw_copies(panel: Any, spans: Sequence[PhaseSpan]) -> None:
    """Draw loads above the line, offloads below."""
    largest = max(span.phase[name] for span in spans for name in ("load_bytes", "offload_bytes")) / MIB
    panel.axhline(0, color=theme.MUTED, linewidth=0.8)
    if not largest:
        panel.annotate(NO_COPIES, (0.5, 0.62), xycoords="axes fraction", ha="center", color=theme.MUTED, style="italic")
        panel.set_yticks([])
        return
    starts, widths = [span.start for span in spans], [span.end - span.start for span in spans]
    for name, sign, color in (("load_bytes", 1, theme.INK), ("offload_bytes", -1, theme.MUTED)):
        heights = [sign * span.phase[name] / MIB for span in spans]
        panel.bar(starts, heights, width=widths, align="edge", color=color, linewidth=0)
    panel.set_ylim(-largest * 1.15, largest * 1.15)
    panel.set_ylabel("MiB")
    panel.yaxis.set_major_formatter(lambda value, _: short(abs(value)))


def _draw_stalls(panel: Any, timeline: Timeline) -> None:
    for span in timeline.spans:
        stall = span.phase["stall_seconds"]
        if stall > 0:
            panel.axvspan(
                span.start, span.start + stall, facecolor="none", edgecolor=theme.INK, hatch="////", linewidth=0
            )


def _label_sections(panel: Any, timeline: Timeline) -> None:
    for kind in ("forward", "backward", "update"):
        matching = [span for span in timeline.spans if span.phase["kind"] == kind]
        if not matching:
            continue
        first, last = matching[0].start, matching[-1].end
        if first > 0:
            panel.axvline(first, color=theme.INK, linewidth=0.8, alpha=0.6)
        is_narrow = last - first < 0.06 * timeline.spans[-1].end
        panel.annotate(
            kind, (last if is_narrow else (first + last) / 2, 1), xycoords=("data", "axes fraction"), xytext=(0, 4),
            textcoords="offset points", fontsize=8.5, color=theme.MUTED, ha="right" if is_narrow else "center", va="bottom",
        )  # fmt: skip
