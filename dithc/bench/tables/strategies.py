"""Summary of `dithc bench strategies`, in the form of table 2 of the paper."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from dithc.core.measurements import ABSENT, Measurement, Table, rounded, with_deviation
from dithc.core.units import GIGA, MIB

SENT = ("tcp_bytes", "mpi_bytes", "shared_bytes")
UNITS = ("s", "GB", "MiB sent")


def strategies_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize time, memory and bytes of each strategy, and the ratios of cftp to the others."""
    settings, names = result["settings"], [variant["name"] for variant in result["variants"]]
    cells = [([str(cell["batch"]), cell["model"]], cell["strategies"]) for cell in result["cells"]]
    tables = [
        Table(
            title="Time, memory and sent bytes by strategy",
            head=["Batch", "Model", *(f"{name} {unit}" for unit in UNITS for name in names)],
            rows=[
                [*labels, *chain(*zip(*(_texts(rows[name]) for name in names), strict=True))] for labels, rows in cells
            ],
            texts=2,
        )
    ]
    if ratios := [[*labels, *ratio] for labels, rows in cells for ratio in _ratios(rows)]:
        head = ["Batch", "Model", "cftp over", "Time", "Memory"]
        tables.append(Table(title="cftp over the other strategies", head=head, rows=ratios, texts=3))
    return Measurement(
        title=f"Strategies, {settings['dtype']}, medians of {settings['rounds']} runs of {settings['steps']} steps",
        tables=tables,
        notes=[
            *(
                f"{labels[1]} {labels[0]}: {name} failed: {row['reason']}"
                for labels, rows in cells
                for name, row in rows.items()
                if row["status"] == "failed"
            ),
            f"{ABSENT}: out of memory. Memory is the sum over the ranks of a node; shared pages count once. Sent are the bytes "
            "of one step over all ranks.",
        ],
        conditions={
            **{one["name"]: f"{one['ranks']} rank(s) of {one['cpus']} thread(s)" for one in result["variants"]},
            "clusters": result["clusters"],
            "memory limit": _limit(result["memory_limit"]),
            **result["counted"],
        },
    )


def _texts(row: Mapping[str, Any]) -> list[str]:
    """Format the values of `UNITS` of a strategy."""
    if row["status"] != "ok":
        return ["failed" if row["status"] == "failed" else ABSENT] * len(UNITS)
    counts = [row[name] for name in SENT if row.get(name) is not None]
    memory = rounded(row["peak_pss_bytes"] / GIGA) if row["peak_pss_bytes"] else ABSENT
    return [with_deviation(row["seconds"]), memory, rounded(sum(counts) / MIB) if counts else ABSENT]


def _ratios(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    for name, row in rows.items():
        if "cftp_seconds_over" in row:
            yield [name, with_deviation(row["cftp_seconds_over"]), rounded(row["cftp_memory_over"])]


def _limit(limit: Mapping[str, Any]) -> str:
    if limit["bytes"] is None:
        return "none"
    origin = "as requested" if limit["asked"] else "available at the start"
    mechanisms = "; ".join(f"{name}: {text}" for name, text in limit["how"].items())
    return f"{rounded(limit['bytes'] / GIGA)} GB for the ranks of a run, {origin} ({mechanisms})"
