"""Scores as bars: one per evaluation, by dataset, with intervals and the floor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dithc.core.measurements import short
from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, canvas, lanes, placeholder
from dithc.report.formatting import score
from dithc.report.records import EvaluationRecord, Measure, ReportRecords, Score


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
    note: str
    floor: float | None
    comparable_to_published: bool


def role_of(checkpoint: str | int) -> str:
    """Return the role of an evaluation by its weights."""
    return "step" if isinstance(checkpoint, int) else checkpoint


def draw_fid(records: ReportRecords) -> Figure:
    """Draw the primary score of each evaluation by dataset."""
    groups: dict[str, list[Bar]] = {}
    for dataset in records.datasets:
        for item in records.evaluations_of(dataset.name):
            if item.score:
                bar = _bar(item, item.score, measure=records.measure)
                groups.setdefault(dataset.title, []).append(bar)
    return draw_bars(groups, measure=records.measure)


def _bar(item: EvaluationRecord, result: Score, *, measure: Measure) -> Bar:
    is_fid = measure == "FID"
    return Bar(
        label=item.label,
        role=role_of(item.checkpoint),
        value=result.value(measure),
        interval=None if is_fid else result.kid_interval,
        note="" if is_fid else f"FID {score(result.fid)}, n = {result.n:,}",
        floor=result.floor if is_fid else None,
        comparable_to_published=result.comparable_to_published,
    )


def draw_bars(groups: Mapping[str, Sequence[Bar]], *, measure: Measure) -> Figure:
    """Draw a panel per group with a separate scale, intervals as whiskers, the floor dashed."""
    if not groups:
        return placeholder("scores: not run")
    longest = max(map(len, groups.values()))
    figure, panels = canvas(len(groups), columns=2, height=0.85 + 0.42 * longest)
    for panel, (title, bars) in zip(panels, groups.items(), strict=True):
        _draw_group(panel, title, bars, measure=measure)
    return figure


def _draw_group(panel: Axes, title: str, bars: Sequence[Bar], *, measure: Measure) -> None:
    panel.barh(
        range(len(bars)), [bar.value for bar in bars], color=[theme.ROLES[bar.role] for bar in bars], height=0.62
    )
    ends = [bar.interval or (bar.value, bar.value) for bar in bars]
    for index, (bar, (low, high)) in enumerate(zip(bars, ends, strict=True)):
        if bar.interval:
            panel.plot([low, high], [index, index], color=theme.INK, linewidth=1.3, marker="|", markersize=7)
        panel.annotate(
            score(bar.value), (high, index), xytext=(6, 0), textcoords="offset points", va="center", fontweight="bold"
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
    incomparable = "" if all(bar.comparable_to_published for bar in bars) else " (NOT comparable)"
    panel.set_xlabel(f"{measure}{interval}, lower is better{incomparable}")
    lanes(panel, ["\n".join(filter(None, [bar.label, bar.note])) for bar in bars])
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(lambda value, _: short(value))
    highest, lowest = max([high for _, high in ends] + floors), min(0.0, *(low for low, _ in ends))
    panel.set_xlim(lowest - 0.03 * (highest - lowest) if lowest else 0.0, highest + 0.18 * (highest - lowest) or 1.0)
