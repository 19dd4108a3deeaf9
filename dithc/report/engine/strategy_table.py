"""Our comparison of strategies in the form of the paper's table 2, and the ratios of both beside each other."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dithc.report.documents import read_bench
from dithc.report.engine.published import Table
from dithc.report.words import ABSENT, rounded, with_deviation

GB, MIB = 1e9, 1 << 20
ORDER = {  # the paper's, then ours
    "dp+tp": "DP+TP",
    "dp": "DP",
    "cftp": "CFTP",
    "cftp-1-cluster": "1 cluster",
    "dp+tp-gloo": "DP+TP (gloo)",
    "dp-gloo": "DP (gloo)",
}
OTHERS = tuple(name for name in ORDER if name != "cftp")


def read_strategies(path: Path) -> dict[str, Any]:
    """Read a result of `dithc bench strategies`; UserError if the file is no such result."""
    return read_bench(path, "strategies", part="cells", what="comparison of strategies")


def strategy_parts(result: Mapping[str, Any] | None, paper: Table | None) -> dict[str, Any]:
    """Return two tables of texts and the conditions; empty without a result. `paper` is table 2, if given."""
    if not result:
        return {"head": [], "rows": [], "ratio_head": [], "ratios": [], "conditions": {}}
    names = [name for name in ORDER if any(name in cell["strategies"] for cell in result["cells"])]
    titles = [ORDER[name] for name in names]
    units = {"s": _seconds, "GB": _memory}
    settings, contenders = result["settings"], result["contenders"]
    return {
        "head": ["Batch", "Model", *(f"{title} {unit}" for unit in units for title in titles)],
        "rows": [
            [
                str(cell["batch"]),
                _model(cell),
                *(text(cell["strategies"][name]) for text in units.values() for name in names),
            ]
            for cell in result["cells"]
        ],
        "ratio_head": [
            "Batch",
            "Model",
            "CFTP against",
            "time",
            "paper, time",
            "memory",
            "paper, memory",
            "MiB sent",
            "by CFTP",
        ],
        "ratios": list(_ratios(result["cells"], _paper_ratios(paper))),
        "conditions": {
            "arithmetic": settings["dtype"],
            "runs": f"{settings['rounds']} of each, in turns; {settings['steps']} steps on the clock in each",
            **{one["name"]: f"{one['ranks']} rank(s) of {one['cpus']} thread(s)" for one in contenders},
            "clusters": result["clusters"],
            "memory limit": _limit(result["memory_limit"]),
            **result["counted"],
        },
    }


def _seconds(row: Mapping[str, Any]) -> str:
    return with_deviation(row["seconds"], digits=3) if row["status"] == "ok" else _why(row)


def _memory(row: Mapping[str, Any]) -> str:
    return (
        rounded(row["peak_pss_bytes"] / GB, digits=3) if row["status"] == "ok" and row["peak_pss_bytes"] else _why(row)
    )


def _sent(row: Mapping[str, Any]) -> str:
    known = [value for name in ("tcp_bytes", "mpi_bytes", "shared_bytes") if (value := row.get(name)) is not None]
    return rounded(sum(known) / MIB, digits=3) if known else _why(row)


def _why(row: Mapping[str, Any]) -> str:
    return "failed" if row["status"] == "failed" else ABSENT


def _model(cell: Mapping[str, Any]) -> str:
    return str(cell["model"]).removeprefix("DiT-")


def _ratios(cells: Iterable[Mapping[str, Any]], paper: Mapping[tuple[str, str, str], str]) -> Iterable[list[str]]:
    for cell in cells:
        for name in OTHERS:
            row = cell["strategies"].get(name, {})
            if "cftp_seconds_over" in row:
                ratio, memory, model = row["cftp_seconds_over"], row["cftp_memory_over"], _model(cell)
                yield [
                    str(cell["batch"]),
                    model,
                    ORDER[name],
                    with_deviation(ratio, digits=3),
                    paper.get((model, name, "s"), ABSENT),
                    ABSENT if memory is None else rounded(memory, digits=3),
                    paper.get((model, name, "GB"), ABSENT),
                    _sent(row),
                    _sent(cell["strategies"]["cftp"]),
                ]


def _paper_ratios(paper: Table | None) -> dict[tuple[str, str, str], str]:
    """Return CFTP over each strategy by model, strategy and unit, for all printed batches."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in paper.rows if paper else []:
        values = dict(zip(paper.columns if paper else [], row, strict=True))
        for name in OTHERS:
            for unit in ("s", "GB"):
                own, other = values.get(f"CFTP {unit}"), values.get(f"{ORDER[name]} {unit}")
                if isinstance(own, int | float) and isinstance(other, int | float):
                    text = f"{own / other:.2f} (batch {values['Batch']})"
                    found.setdefault((str(values["Model"]), name, unit), []).append(text)
    return {key: ", ".join(texts) for key, texts in found.items()}


def _limit(given: Mapping[str, Any]) -> str:
    if given["bytes"] is None:
        return "none"
    whose = "as asked" if given["asked"] else "what was available at the start"
    how = "; ".join(f"{name}: {text}" for name, text in given["how"].items())
    return f"{rounded(given['bytes'] / GB, digits=3)} GB for the ranks of a run, {whose} ({how})"
