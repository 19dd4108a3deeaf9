"""The figure of a step in two memory tiers: occupancy by kind, copies, stalls, budgets."""

from collections.abc import Mapping, Sequence
from typing import Any

from dithc.report.engine import timelines
from dithc.report.facts import Facts
from dithc.report.figures import theme
from dithc.report.figures.canvas import WIDTH_INCHES, as_png, drawing, nothing, styled
from dithc.summaries import rounded, short

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


def draw_memory(facts: Facts) -> bytes:
    """Draw the plan in the `dithc bench automem` result of the report."""
    found = timelines.timeline_of(facts.benches.get("automem", {}))
    return draw_timeline(found) if found else nothing("plan of memory: not run")


def draw_timeline(timeline: timelines.Timeline) -> bytes:
    """Draw fast tier, copies and slow tier on one time axis."""
    with styled():
        figure, (fast, copies, slow) = drawing(HEIGHTS, width=WIDTH_INCHES)
        colours = dict(zip(timelines.KINDS, (theme.MUTED, *theme.PALETTE), strict=False))
        shown = [
            kind
            for kind in timelines.KINDS
            if any(turn.fast.get(kind) or turn.slow.get(kind) for turn in timeline.turns)
        ]
        _stack(fast, timeline.turns, [turn.fast for turn in timeline.turns], shown, colours)
        _stack(slow, timeline.turns, [turn.slow for turn in timeline.turns], shown, colours)
        _limit(fast, timeline.budget_bytes, over=_most(timeline.turns, "fast"))
        _limit(slow, timeline.slow_budget_bytes, over=_most(timeline.turns, "slow"))
        _copies(copies, timeline.turns)
        for panel in (fast, copies, slow):
            _stalls(panel, timeline)
            panel.set_xlim(0, timeline.seconds)
            panel.grid(visible=False, axis="x")
        _sections(fast, timeline)
        fast.set_title(f"Fast tier: {timeline.fast}", pad=20)
        slow.set_title(f"Slow tier: {timeline.slow}")
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


def _said(timeline: timelines.Timeline) -> str:
    peak = max(sum(turn.fast.values()) for turn in timeline.turns)
    loaded, offloaded = (sum(getattr(turn, name) for turn in timeline.turns) for name in ("loaded", "offloaded"))
    words = [
        timeline.title,
        f"step {short(timeline.seconds)} s, stall {timeline.stall / (timeline.seconds or 1):.1%}",
        f"planned peak {short(peak / GIB)} GiB",
        f"loads {short(loaded / GIB)} GiB, offloads {short(offloaded / GIB)} GiB",
    ]
    if timeline.measured_peak_bytes is not None:
        words.insert(3, f"measured peak {short(timeline.measured_peak_bytes / GIB)} GiB")
    return "  ·  ".join(filter(None, words))


def _stack(
    panel: Any,
    turns: Sequence[timelines.Turn],
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


def _most(turns: Sequence[timelines.Turn], tier: str) -> float:
    held: list[Mapping[str, int]] = [getattr(turn, tier) for turn in turns]
    return max(sum(parts.values()) for parts in held) / GIB


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


def _copies(panel: Any, turns: Sequence[timelines.Turn]) -> None:
    """Draw loads above the line, offloads below."""
    most = max(max(turn.loaded, turn.offloaded) for turn in turns) / MIB
    panel.axhline(0, color=theme.MUTED, linewidth=0.8)
    if not most:
        panel.annotate(NO_COPIES, (0.5, 0.62), xycoords="axes fraction", ha="center", color=theme.MUTED, style="italic")
        panel.set_yticks([])
        return
    starts, widths = [turn.start for turn in turns], [turn.end - turn.start for turn in turns]
    for name, sign, colour in (("loaded", 1, theme.INK), ("offloaded", -1, theme.MUTED)):
        heights = [sign * getattr(turn, name) / MIB for turn in turns]
        panel.bar(starts, heights, width=widths, align="edge", color=colour, linewidth=0)
    panel.set_ylim(-most * 1.15, most * 1.15)
    panel.set_ylabel("MiB")
    panel.yaxis.set_major_formatter(lambda value, _: short(abs(value)))


def _stalls(panel: Any, timeline: timelines.Timeline) -> None:
    for turn in timeline.turns:
        if turn.stall > 0:
            panel.axvspan(
                turn.start, turn.start + turn.stall, facecolor="none", edgecolor=theme.INK, hatch="////", linewidth=0
            )


def _sections(panel: Any, timeline: timelines.Timeline) -> None:
    """Label forward, backward and update above the panel."""
    for kind in ("forward", "backward", "update"):
        own = [turn for turn in timeline.turns if turn.kind == kind]
        if not own:
            continue
        first, last = own[0].start, own[-1].end
        if first > 0:
            panel.axvline(first, color=theme.INK, linewidth=0.8, alpha=0.6)
        narrow = last - first < 0.06 * timeline.seconds
        panel.annotate(
            kind, (last if narrow else (first + last) / 2, 1), xycoords=("data", "axes fraction"), xytext=(0, 4),
            textcoords="offset points", fontsize=8.5, color=theme.MUTED, ha="right" if narrow else "center", va="bottom",
        )  # fmt: skip
