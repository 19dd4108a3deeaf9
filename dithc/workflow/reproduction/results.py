"""Readers of cell results: numbers with their spread, curves and notes, by target.

A reader maps a cell and the JSON of its command to `CellResults`. It reads no other cell. `compose` compares cells.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Any

from dithc.core.reproduction import ResultCell, Series, published_value
from dithc.core.units import GIGA
from dithc.workflow.reproduction.jobs import CellJob
from dithc.workflow.reproduction.scales import BATCH
from dithc.workflow.reproduction.targets import PRODUCTS, STRATEGIES

PATH = re.compile(r" /[^ ]+")  # of the control group of a run, which no longer exists
FULL_BATCHES = (BATCH, 2 * BATCH)
STATUS = {"ok": "measured", "oom": "out of memory"}
MODULES = {"qkv": "qkv_proj", "out": "o_proj", "up": "up_proj", "down": "down_proj", "condition": "condition_proj"}
MODES = {"fig10": "weak", "fig11": "strong"}
PER_NODE_TFLOPS = {"linear layers": round(182.47 / 32, 2)}  # section 5.6: 32 nodes, linear layers alone


@dataclass
class CellResults:
    """Content of one cell result."""

    cells: list[ResultCell] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: "CellResults") -> None:
        self.cells += other.cells
        self.series += other.series
        self.notes += [note for note in other.notes if note not in self.notes]


def cell_of(job: CellJob, column: str, quantity: str, unit: str, *, row: str = "", **more: Any) -> ResultCell:
    """Return a cell of a job, by default with status measured."""
    row = row or job.row
    name = f"{job.name} {row} {column} {quantity}"
    return ResultCell(
        id="-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split()),
        row=row,
        column=column,
        quantity=quantity,
        unit=unit,
        predicted_seconds=round(job.seconds, 1),
        command=job.command,
        digest=job.digest,
        **({"status": "measured"} | more),
    )


def without_value(job: CellJob, status: str, reason: str) -> list[ResultCell]:
    return [cell_of(job, column, "", "", status=status, reason=reason) for column in job.columns]


def spread_of(timing: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return value and range of a spread, and the file that has them."""
    samples = timing.get("all") or timing.get("rounds") or []
    low, high = (min(samples), max(samples)) if len(samples) > 1 else (None, None)
    return {"value": timing["median"], "low": low, "high": high, "file": file}


def _failed(row: Mapping[str, Any]) -> dict[str, Any] | None:
    if row["status"] == "ok":
        return None
    return {"status": STATUS.get(row["status"], "skipped"), "reason": row["reason"]}


def _table2(job: CellJob, result: Mapping[str, Any], file: str) -> CellResults:
    strategy = job.metadata["strategy"]
    row = result["cells"][0]["strategies"][strategy]
    column, is_full = STRATEGIES[strategy], job.metadata["full"] and job.metadata["batch"] in FULL_BATCHES
    limit = PATH.sub("", next(iter(result["memory_limit"]["how"].values()), "no limit"))
    results = CellResults(notes=[f"A limit on all ranks of a run decides out of memory: {limit.split(' (', 1)[0]}."])
    if failed := _failed(row):
        results.cells = without_value(job, failed["status"], f"{failed['reason']}; limit: {limit}")
        return results
    printed = {
        unit: published_value("table2", job.row, f"{column} {unit}") if is_full else None for unit in ("s", "GB")
    }
    seconds = spread_of(row["seconds"], file) | {"published": printed["s"]}
    results.cells.append(cell_of(job, f"{column} s", "seconds per iteration", "s", **seconds))
    if row["peak_pss_bytes"] is not None:
        peak = {"value": row["peak_pss_bytes"] / GIGA, "file": file, "published": printed["GB"]}
        results.cells.append(cell_of(job, f"{column} GB", "peak memory of all ranks", "GB", **peak))
    return results


def _table3(job: CellJob, result: Mapping[str, Any], file: str) -> CellResults:
    if job.name.startswith("tuning-"):
        return CellResults()
    rows = {row["name"]: row for row in result["variants"]}
    batch, base, quantity = job.metadata["batch"], rows["torch-blas"], "seconds per iteration"
    is_full = job.metadata["full"] and batch == BATCH
    note = f"{batch} images per step on one node; the paper has {BATCH}."
    results = CellResults(notes=[note] if batch != BATCH else [])
    for name, column in PRODUCTS.items():
        row, failed = rows[name], _failed(rows[name])
        if name == "dithc" and not job.metadata["tuned"]:
            reason = "no search for the fastest products at this scale: it takes too long"
            failed = {"status": "skipped", "reason": reason}
        if failed:
            results.cells.append(cell_of(job, column, quantity, "s", **failed))
            continue
        printed, native = (published_value("table3", job.row, title) for title in (column, "nativeBLAS"))
        seconds = spread_of(row["seconds"], file) | {"published": printed if is_full else None}
        results.cells.append(cell_of(job, column, quantity, "s", **seconds))
        if base["status"] == "ok" and name != "torch-blas":
            rounds = [a / b for a, b in zip(base["seconds"]["all"], row["seconds"]["all"], strict=True)]
            value = base["seconds"]["median"] / row["seconds"]["median"]
            ratio = spread_of({"median": value, "all": [value, *rounds]}, file)
            ratio["published"] = native / printed if native and printed else None
            results.cells.append(cell_of(job, f"{column} over nativeBLAS", "speedup", "x", **ratio))
    return results


def _table4(job: CellJob, result: Mapping[str, Any], file: str) -> CellResults:
    dtype, libraries = job.metadata["dtype"], ("openblas", "torch-blas", "onednn")
    model = job.metadata["model"]
    results = CellResults(
        notes=[f"Modules of {model} here, of DiT-XL/2 in the paper; nativeBLAS is the library of PyTorch."]
    )
    by_module: dict[str, dict[str, Mapping[str, Any]]] = {}
    for case in result["cases"]:
        module, product = case["name"].split()
        by_module.setdefault(module, {})[product] = case["speedup_of_hcops_over"]
    for name in libraries:
        title = f"{PRODUCTS[name]} {dtype}"
        if cause := result["libraries"][name][dtype]:
            results.cells.append(cell_of(job, title, "speedup", "x", row="all modules", status="skipped", reason=cause))
        for module, products in by_module.items():
            if any(name not in over for over in products.values()):
                continue
            row = MODULES[module]
            for product, over in products.items():
                quantity = f"speedup, {product.replace('_', ' of ')}"
                results.cells.append(cell_of(job, title, quantity, "x", row=row, **spread_of(over[name], file)))
            is_papers = name == "torch-blas" and dtype == "fp32"
            mean = {
                "value": geometric_mean(over[name]["median"] for over in products.values()),
                "published": published_value("table4", row, "Speed-up") if is_papers else None,
            }
            results.cells.append(cell_of(job, title, "speedup, mean of the products", "x", row=row, file=file, **mean))
    return results


def _fig9(job: CellJob, result: Mapping[str, Any], file: str) -> CellResults:
    results, column = CellResults(), job.columns[0]
    for row in result["stages"]:
        fields = {"row": row["label"], "published": published_value("fig9", row["name"], "Speed-up")}
        failed = _failed(row)
        if failed is None and row.get("speedup") is None:
            failed = {"status": "skipped", "reason": "the baseline has no time"}
        if failed:
            results.cells.append(cell_of(job, column, "speedup", "x", **fields, **failed))
            continue
        results.cells.append(cell_of(job, column, "speedup", "x", **fields, **spread_of(row["speedup"], file)))
        seconds = spread_of(row["seconds"], file)
        results.cells.append(cell_of(job, f"{column} s", "seconds per iteration", "s", row=row["label"], **seconds))
    return results


def _scaling(job: CellJob, result: Mapping[str, Any], file: str) -> CellResults:
    """Read the curves of `dithc bench scaling` and `dithc simulate`."""
    results = CellResults()
    for curve in result["curves"]:
        if curve["mode"] != MODES[job.target]:
            continue
        kind, points = curve["kind"], curve["points"]
        count = "ranks" if kind == "measured" else "nodes"
        name = "measured" if kind == "measured" else curve["label"]
        batch = f", batch {curve['global_batch_size']}" if curve.get("global_batch_size") else ""
        label = f"{name} {curve['model'].removeprefix('DiT-')}{batch}"
        series = Series(
            label=label,
            kind=kind,
            x=tuple(float(point[count]) for point in points),
            y=tuple(_number(point.get("efficiency")) for point in points),
            x_label=count,
            y_label="efficiency",
            file=file,
        )
        results.series.append(series)
        if kind != "published":
            for point in points:
                results.cells += _point(job, point, f"{label}, {point[count]} {count}", kind=kind, file=file)
    return results


def _point(job: CellJob, point: Mapping[str, Any], row: str, *, kind: str, file: str) -> list[ResultCell]:
    if failed := _failed({"status": "ok"} | dict(point)):
        return [cell_of(job, "efficiency", "efficiency", "", row=row, **failed)]
    fields: dict[str, Any] = {"row": row, "status": kind, "file": file}
    if kind == "simulated":
        fields["reason"] = "simulated on the described machine, from the seconds of one node and its links"
    values = {"efficiency": ("efficiency", ""), "seconds": ("seconds per iteration", "s")}
    return [
        cell_of(job, unit or name, quantity, unit, value=value, **fields)
        for name, (quantity, unit) in values.items()
        if (value := _number(point.get(name))) is not None
    ]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _sec56(job: CellJob, result: Mapping[str, Any], file: str) -> CellResults:
    results = CellResults(notes=["The paper has 182.47 TFLOP/s on 32 nodes, linear layers alone: 5.70 per node."])
    for row in result["variants"]:
        name, failed = f"{job.row} {row['name']}", _failed(row)
        for column, rate in {"linear layers": "training_linear", "with attention": "training_total"}.items():
            if failed:
                results.cells.append(cell_of(job, column, "sustained", "TFLOP/s", row=name, **failed))
                continue
            value, timing = row["gflop_per_second"][rate] / 1e3, row["seconds"]
            rounds = [timing["median"] / seconds * value for seconds in timing["all"]]
            fields = spread_of({"median": value, "all": [value, *rounds]}, file)
            if row["name"] == "dithc" and job.metadata["dtype"] == "fp32":
                fields["published"] = PER_NODE_TFLOPS.get(column)
            results.cells.append(cell_of(job, column, "sustained", "TFLOP/s", row=name, **fields))
    return results


READERS: Mapping[str, Callable[[CellJob, Mapping[str, Any], str], CellResults]] = {
    "table2": _table2,
    "table3": _table3,
    "table4": _table4,
    "fig9": _fig9,
    "fig10": _scaling,
    "fig11": _scaling,
    "sec56": _sec56,
}


def read_result(job: CellJob, result: Mapping[str, Any], file: str) -> CellResults:
    """Return the content of a cell result; `file` is relative to the page."""
    results = READERS[job.target](job, result, file)
    counts: dict[str, int] = {}
    for place, cell in enumerate(results.cells):  # ids of rows that differ in punctuation only
        counts[cell.id] = counts.get(cell.id, 0) + 1
        if counts[cell.id] > 1:
            results.cells[place] = replace(cell, id=f"{cell.id}-{counts[cell.id]}")
    return results
