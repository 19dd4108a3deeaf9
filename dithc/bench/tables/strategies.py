"""Summary of `dithc bench strategies`, in the form of table 2 of the paper."""

from collections.abc import Iterator, Mapping
from typing import Any

from dithc.core.summaries import ABSENT, Measurement, Table, rounded, with_deviation

GB, MIB = 1e9, 1 << 20
SENT = ("tcp_bytes", "mpi_bytes", "shared_bytes")


def strategies_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize time, memory and bytes of each strategy, and the ratios of cftp to the others."""
    settings, names = result["settings"], [contender["name"] for contender in result["contenders"]]
    units = {"s": _seconds, "GB": _memory, "MiB sent": _sent}
    cells = [([str(cell["batch"]), cell["model"]], cell["strategies"]) for cell in result["cells"]]
    tables = [
        Table(
            title="Time, memory and sent bytes by strategy",
            head=["Batch", "Model", *(f"{name} {unit}" for unit in units for name in names)],
            rows=[
                [*known, *(value(rows[name]) for value in units.values() for name in names)] for known, rows in cells
            ],
            texts=2,
        )
    ]
    if ratios := [[*known, *ratio] for known, rows in cells for ratio in _ratios(rows)]:
        head = ["Batch", "Model", "cftp over", "Time", "Memory"]
        tables.append(Table(title="cftp over the other strategies", head=head, rows=ratios, texts=3))
    return Measurement(
        title=f"Strategies, {settings['dtype']}, medians of {settings['rounds']} runs of {settings['steps']} steps",
        tables=tables,
        notes=[
            *(
                f"{known[1]} {known[0]}: {name} failed: {row['reason']}"
                for known, rows in cells
                for name, row in rows.items()
                if row["status"] == "failed"
            ),
            f"{ABSENT}: out of memory. Memory is the sum over the ranks of a node; shared pages count once. Sent are the bytes "
            "of one step over all ranks.",
        ],
        conditions={
            **{one["name"]: f"{one['ranks']} rank(s) of {one['cpus']} thread(s)" for one in result["contenders"]},
            "clusters": result["clusters"],
            "memory limit": _limit(result["memory_limit"]),
            **result["counted"],
        },
    )


def _seconds(row: Mapping[str, Any]) -> str:
    return with_deviation(row["seconds"]) if row["status"] == "ok" else _absent(row)


def _memory(row: Mapping[str, Any]) -> str:
    return rounded(row["peak_pss_bytes"] / GB) if row["status"] == "ok" and row["peak_pss_bytes"] else _absent(row)


def _sent(row: Mapping[str, Any]) -> str:
    known = [row[name] for name in SENT if row.get(name) is not None]
    return rounded(sum(known) / MIB) if row["status"] == "ok" and known else _absent(row)


def _absent(row: Mapping[str, Any]) -> str:
    return "failed" if row["status"] == "failed" else ABSENT


def _ratios(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    for name, row in rows.items():
        if "cftp_seconds_over" in row:
            yield [name, with_deviation(row["cftp_seconds_over"]), rounded(row["cftp_memory_over"])]


def _limit(given: Mapping[str, Any]) -> str:
    if given["bytes"] is None:
        return "none"
    origin = "as requested" if given["asked"] else "available at the start"
    how = "; ".join(f"{name}: {text}" for name, text in given["how"].items())
    return f"{rounded(given['bytes'] / GB)} GB for the ranks of a run, {origin} ({how})"
