"""Wall time by stage and dataset."""

import numpy as np

from dithc.report.figures import theme
from dithc.report.figures.canvas import Figure, canvas, lanes, placeholder
from dithc.report.formatting import span
from dithc.report.records import ReportRecords

UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))


def draw_stages(records: ReportRecords) -> Figure:
    stages = list(dict.fromkeys(timing.stage for timing in records.timings))
    if not stages:
        return placeholder("no stages were run")
    titles = {dataset.name: dataset.title for dataset in records.datasets}
    titles |= {timing.dataset: "other" for timing in records.timings if timing.dataset not in titles}
    seconds = np.zeros((len(titles), len(stages)))
    for timing in records.timings:
        seconds[list(titles).index(timing.dataset), stages.index(timing.stage)] += timing.seconds
    totals = seconds.sum(axis=0)
    unit, factor = next(pair for pair in UNITS if totals.max() >= 3 * pair[1] or pair[1] == 1)
    figure, (panel,) = canvas(1, columns=1, height=0.8 + 0.3 * len(stages))
    offsets = np.zeros(len(stages))
    for number, (title, values) in enumerate(zip(titles.values(), seconds, strict=True)):
        color = theme.MUTED if title == "other" else theme.PALETTE[number % len(theme.PALETTE)]
        panel.barh(range(len(stages)), values / factor, left=offsets / factor, color=color, height=0.64, label=title)
        offsets += values
    for index, total in enumerate(totals):
        panel.annotate(span(total), (total / factor, index), xytext=(5, 0), textcoords="offset points", va="center")
    lanes(panel, stages)
    panel.set_xlim(0, totals.max() / factor * 1.14 or 1.0)
    panel.set_xlabel(unit)
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.INK)
    return figure
