"""Parts of the page with benchmarks of the engine."""

from dataclasses import dataclass, field

from dithc.core.measurements import Measurement
from dithc.core.reproduction import read_reference
from dithc.report import scaling_curves
from dithc.report.html.tables import Table, from_summary
from dithc.report.records import ReportRecords

TITLES = {
    "step": "Training step",
    "strategies": "Strategies on one node: time, memory, bytes between ranks",
    "weak": "Weak scaling: fixed images per rank",
    "strong": "Strong scaling: fixed images over all ranks",
    "stepwise": "Gain of each part of dithc",
    "automem": "Memory: tiers, budgets, the pool",
}
# Name and text alternative of the figure of a benchmark.
FIGURES = {
    "stepwise": (
        "stepwise",
        "Speedup over the baseline by stage, measured here and published; the numbers are in the table.",
    ),
    "automem": ("memory", "Both memory tiers over one step as planned by AutoMem: occupancy, copies and stalls."),
}
PRINTED = {"strategies": "table2", "stepwise": "figure9"}
OF_PAPER = "Compare ratios with the paper, not seconds: its machine, models and sizes differ (see dithc reproduce)."
SCALING_NOTE = (
    "Curves are measured here, published (printed in the paper or in the logs of its authors), or simulated. "
    "Efficiency is relative to the fewest ranks of the same curve. Ranks of the paper are dies, four per node, on its machine. "
    "Seconds are medians with their deviation. Exposed: wait for gradients after the backward pass. Linear: TFLOP/s of linear "
    "layers alone, as counted in the paper. Same losses: losses and gradient norms equal those on the fewest ranks."
)


@dataclass(frozen=True, kw_only=True)
class BenchmarkSection:
    """A benchmark on the page."""

    name: str  # its anchor
    title: str
    notes: list[str] = field(default_factory=list)
    figure: tuple[str, str] | None = None  # name and description of its figure; None without a figure
    tables: list[Table] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)  # tables that are collapsed
    conditions: dict[str, str] = field(default_factory=dict)


def engine_parts(records: ReportRecords) -> tuple[list[BenchmarkSection], list[str]]:
    """Return the measured parts, and the titles of benchmarks that were not run."""
    parts, missing = [], []
    for kind, title in TITLES.items():
        if kind in records.benches:
            parts.append(_measured(kind, records))
        elif any(curve.mode == kind for curve in records.scaling):
            parts.append(_scaling(records, kind))
        else:
            missing.append(title)
    return parts, missing


def _measured(kind: str, records: ReportRecords) -> BenchmarkSection:
    measurement = Measurement.of(records.benches[kind])
    printed = read_reference().tables.get(PRINTED.get(kind, ""))
    return BenchmarkSection(
        name=kind,
        title=TITLES[kind],
        notes=[f"{measurement.title}.", *measurement.notes, *([OF_PAPER] if printed else [])],
        figure=FIGURES.get(kind),
        tables=[from_summary(table) for table in measurement.tables],
        folded=[from_summary(printed.table)] if printed else [],
        conditions=measurement.conditions,
    )


def _scaling(records: ReportRecords, mode: str) -> BenchmarkSection:
    text = f"{mode.capitalize()} scaling: efficiency and seconds per step by number of ranks; the table has all points."
    return BenchmarkSection(
        name=f"{mode}-scaling",
        title=TITLES[mode],
        notes=[SCALING_NOTE],
        figure=(f"{mode}_scaling", text),
        folded=[from_summary(scaling_curves.points_table(records.scaling, mode))],
    )
