"""Scores as bars: one per evaluation, by dataset, with intervals and the floor."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dithc.core.summaries import short
from dithc.report.figures import theme
from dithc.report.figures.canvas import as_png, canvas, lanes, nothing, styled
from dithc.report.formatting import score
from dithc.report.records import Measure, ReportRecords


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One score as a bar.

    `role` (untrained, start, step, final, codec) selects the color; `interval` is the 95% interval; `floor` is drawn as
    a line.
    """

    label: str
    role: str
    value: float
    interval: Sequence[float] | None
    beside: str
    floor: float | None
    comparable: bool


def role_of(at: str | int) -> str:
    """Return the role of an evaluation by its weights."""
    return "step" if isinstance(at, int) else at


def draw_fid(facts: ReportRecords) -> bytes:
    """Draw the primary score of each evaluation by dataset."""
    groups: dict[str, list[Bar]] = {}
    for dataset in facts.datasets:
        for item in facts.evaluations_of(dataset.name):
            if item.score:
                bar = bar_of(asdict(item.score), label=item.label, role=role_of(item.checkpoint), measure=facts.measure)
                groups.setdefault(dataset.title, []).append(bar)
    return draw_bars(groups, measure=facts.measure)


def bar_of(given: Mapping[str, Any], *, label: str, role: str, measure: Measure) -> Bar:
    """Return the bar of a score from its record in the JSON of the report."""
    same: dict[str, Any] = {"label": label, "role": role, "comparable": given["comparable"]}
    if measure == "FID":
        return Bar(value=given["fid"], interval=None, beside="", floor=given["floor"], **same)
    beside = f"FID {score(given['fid'])}, n = {min(given['n_real'], given['n_generated']):,}"
    return Bar(value=given["kid"], interval=given.get("kid_interval"), beside=beside, floor=None, **same)


def draw_bars(groups: Mapping[str, Sequence[Bar]], *, measure: Measure) -> bytes:
    """Draw a panel per group with a separate scale, intervals as whiskers, the floor dashed."""
    if not groups:
        return nothing("scores: not run")
    most = max(map(len, groups.values()))
    with styled():
        figure, panels = canvas(len(groups), columns=2, height=0.85 + 0.42 * most)
        for panel, (title, bars) in zip(panels, groups.items(), strict=True):
            _bars(panel, title, bars, measure=measure)
        return as_png(figure)


def _bars(panel: Axes, title: str, bars: Sequence[Bar], *, measure: Measure) -> None:
    panel.barh(
        range(len(bars)), [bar.value for bar in bars], color=[theme.ROLES[bar.role] for bar in bars], height=0.62
    )
    ends = [bar.interval or (bar.value, bar.value) for bar in bars]
    for place, (bar, (low, high)) in enumerate(zip(bars, ends, strict=True)):
        if bar.interval:
            panel.plot([low, high], [place, place], color=theme.INK, linewidth=1.3, marker="|", markersize=7)
        panel.annotate(
            score(bar.value), (high, place), xytext=(6, 0), textcoords="offset points", va="center", fontweight="bold"
        )
    floors = sorted({bar.floor for bar in bars if bar.floor is not None})
    for floor in floors:
        panel.axvline(floor, color=theme.INK, linewidth=1.2, linestyle=(0, (4, 3)))
    if floors:
        panel.annotate(
            f"floor {score(floors[0])}", (floors[0], 1), xycoords=("data", "axes fraction"), fontsize=8,
            xytext=(4, -1), textcoords="offset points", color=theme.INK, va="bottom",
        )  # fmt: skip
    panel.set_title(title, pad=16)
    interval = " with 95% intervals" if any(bar.interval for bar in bars) else ""
    incomparable = "" if all(bar.comparable for bar in bars) else " (NOT comparable)"
    panel.set_xlabel(f"{measure}{interval}, lower is better{incomparable}")
    lanes(panel, ["\n".join(filter(None, [bar.label, bar.beside])) for bar in bars])
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(lambda value, _: short(value))
    highest, lowest = max([high for _, high in ends] + floors), min(0.0, *(low for low, _ in ends))
    panel.set_xlim(lowest - 0.03 * (highest - lowest) if lowest else 0.0, highest + 0.18 * (highest - lowest) or 1.0)
