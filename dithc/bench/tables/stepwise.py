"""Summary of `dithc bench stepwise`: a training run that gets one part of dithc after the other."""

from collections.abc import Mapping
from typing import Any

from dithc.core.summaries import ABSENT, Measurement, Table, with_deviation

HEAD = ["Stage", "Adds", "s per step", "Speedup", "Over the stage before", "Page faults per step"]


def stepwise_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the stages, and the differences of their losses."""
    settings, ranks, stages = result["settings"], result["ranks"], result["stages"]
    measured = [row for row in stages if row["status"] == "ok"]
    notes = [f"{row['label']}: {row['status']}: {row['reason']}" for row in stages if row["status"] != "ok"]
    if measured and all(row["speedup"] is None for row in measured):
        notes.append("no speedup: the baseline was left out, or failed")
    found = [row["largest_difference_of_losses"] for row in measured if row["largest_difference_of_losses"] is not None]
    if found:
        notes.append(f"losses differ by at most {max(found):.1e} of their size, because kernels round differently")
    return Measurement(
        title=f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}, {ranks['ranks']} rank(s) × {ranks['cpus']} "
        f"thread(s), medians of {settings['rounds']} interleaved runs of {settings['steps']} steps",
        tables=[Table(title="Speedup by stage", head=HEAD, rows=[_row(row) for row in stages], texts=2)],
        notes=notes,
    )


def _row(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [row["label"], row["what"], row["status"], *[ABSENT] * (len(HEAD) - 3)]
    numbers = (with_deviation(row[name]) for name in ("seconds", "speedup", "speedup_over_previous"))
    return [row["label"], row["what"], *numbers, f"{row['page_faults']:,.0f}"]
