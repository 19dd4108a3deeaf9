"""What is read from the cells of each target: numbers with their spread, curves, what was found.

A reader gets a cell and what its command wrote, and gives `Read`; none looks at another cell, `compose` compares those.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Any

from dithc.papers import Cell, Series, published
from dithc.workflow.paper.jobs import Job
from dithc.workflow.paper.sizes import BATCH
from dithc.workflow.paper.targets import PRODUCTS, STRATEGIES

GIGA, TERA = 1e9, 1e12
PATH = re.compile(r" /[^ ]+")  # of the group of a run, which is gone when one reads of it
FULL_BATCHES = (BATCH, 2 * BATCH)
STATUS = {"ok": "measured", "oom": "out of memory"}
# Steps of figure 9 as the paper calls them.
STEPS = {
    "gemm": "GEMM",
    "mpi": "+ asynchronous MPI",
    "operators": "+ AI operators",
    "automem": "+ AutoMem",
    "tuned": "+ tuning",
}
MODULES = {"qkv": "qkv_proj", "out": "o_proj", "up": "up_proj", "down": "down_proj", "condition": "condition_proj"}
MODES = {"fig10": "weak", "fig11": "strong"}
LOCAL_STEPS = 8
PER_NODE_TFLOPS = {"linear layers": round(182.47 / 32, 2)}  # section 5.6: of 32 nodes, linear layers alone


@dataclass
class Read:
    """Content of one cell's result."""

    cells: list[Cell] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: "Read") -> None:
        """Append another content."""
        self.cells += other.cells
        self.series += other.series
        self.findings += [one for one in other.findings if one not in self.findings]
        self.notes += [one for one in other.notes if one not in self.notes]


def cell_of(job: Job, column: str, quantity: str, unit: str, *, row: str = "", **more: Any) -> Cell:
    """Return a cell of a job, by default with status measured."""
    told: dict[str, Any] = {"status": "measured"} | more
    row = row or job.row
    name = f"{job.name} {row} {column} {quantity}" if "name" not in told else told.pop("name")
    return Cell(
        id="-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split()),
        row=row,
        column=column,
        quantity=quantity,
        unit=unit,
        predicted_seconds=round(job.seconds, 1),
        command=job.command,
        digest=job.digest,
        **told,
    )


def without_value(job: Job, status: str, reason: str) -> list[Cell]:
    """The cells of a job that gave no number."""
    return [cell_of(job, column, "", "", status=status, reason=reason) for column in job.columns]


def spread_of(timing: Mapping[str, Any]) -> dict[str, Any]:
    """Value and range of a spread as benches write it."""
    every = timing.get("all") or timing.get("rounds") or []
    many = len(every) > 1
    return {"value": timing["median"], "low": min(every) if many else None, "high": max(every) if many else None}


def _table2(job: Job, result: Mapping[str, Any], file: str) -> Read:
    strategy = job.facts["strategy"]
    row = result["cells"][0]["strategies"][strategy]
    column, batch = STRATEGIES[strategy], job.facts["batch"]
    limit = PATH.sub("", next(iter(result["memory_limit"]["how"].values()), "no limit"))
    notes = [f"Out of memory is decided by a limit on all ranks of a run: {limit.split(' (', 1)[0]}."]
    if row["status"] != "ok":
        status = STATUS.get(row["status"], "skipped")
        return Read(without_value(job, status, f"{row['reason']}; limit: {limit}"), notes=notes)
    printed = {
        name: published("table2", job.row, name) if job.facts["full"] and batch in FULL_BATCHES else None
        for name in job.columns
    }
    peak = row["peak_pss_bytes"]
    found = [
        cell_of(
            job,
            f"{column} s",
            "seconds an iteration",
            "s",
            **spread_of(row["seconds"]),
            published=printed[f"{column} s"],
            file=file,
        )
    ]
    if peak is not None:
        name = f"{column} GB"
        value = peak / GIGA
        found.append(
            cell_of(job, name, "peak memory of all ranks", "GB", value=value, published=printed[name], file=file)
        )
    return Read(found, notes=notes)


def _table3(job: Job, result: Mapping[str, Any], file: str) -> Read:
    if job.name.startswith("tuning-"):
        return Read()
    rows = {row["name"]: row for row in result["contenders"]}
    is_tuned, batch = job.facts["tuned"], job.facts["batch"]
    read = Read(notes=[f"{batch} images a step on one node; the paper has {BATCH}."] if batch != BATCH else [])
    tuned = rows["dithc"].get("seconds", {}).get("median") if is_tuned else None
    base = rows["torch-blas"]
    for name, column in PRODUCTS.items():
        row = rows[name]
        if name == "dithc" and not is_tuned:
            why = "no search for the fastest products at this scale, which takes longer than all its other cells"
            read.cells.append(cell_of(job, column, "seconds an iteration", "s", status="skipped", reason=why))
            continue
        if row["status"] != "ok":
            status = STATUS.get(row["status"], "skipped")
            read.cells.append(cell_of(job, column, "seconds an iteration", "s", status=status, reason=row["reason"]))
            continue
        full = job.facts["full"] and batch == BATCH
        printed = published("table3", job.row, column)
        told: dict[str, Any] = {"published": printed if full else None, "file": file}
        read.cells.append(cell_of(job, column, "seconds an iteration", "s", **spread_of(row["seconds"]), **told))
        if base["status"] == "ok" and name != "torch-blas":
            native = published("table3", job.row, "nativeBLAS")
            pairs = zip(base["seconds"]["all"], row["seconds"]["all"], strict=True)
            ratios = [theirs / own for theirs, own in pairs]
            value = base["seconds"]["median"] / row["seconds"]["median"]
            over = native / printed if native and printed else None
            spread = {"value": value, "low": min(value, *ratios), "high": max(value, *ratios), "published": over}
            read.cells.append(cell_of(job, f"{column} over nativeBLAS", "speed-up", "x", **spread, file=file))
    if tuned and base["status"] == "ok":
        read.findings.append(
            f"{job.row}: tuned products make the step {base['seconds']['median'] / tuned:.2f} x that of nativeBLAS."
        )
    return read


def _table4(job: Job, result: Mapping[str, Any], file: str) -> Read:
    read, dtype = Read(), job.facts["dtype"]
    libraries = ("openblas", "torch-blas", "onednn")
    for name in libraries:
        why = result["libraries"][name][dtype]
        if why:
            column = f"{PRODUCTS[name]} {dtype}"
            read.cells.append(
                cell_of(job, column, "speed-up over it", "x", row="all modules", status="skipped", reason=why)
            )
    by_module: dict[str, dict[str, Mapping[str, Any]]] = {}
    for case in result["cases"]:
        module, of = case["name"].split()
        by_module.setdefault(module, {})[of] = case["speedup_of_hcops_over"]
    for module, passes in by_module.items():
        for name in libraries:
            if any(name not in over for over in passes.values()):
                continue
            column = f"{PRODUCTS[name]} {dtype}"
            for of, over in passes.items():
                spread = spread_of(over[name])
                quantity = f"speed-up over it, {of.replace('_', ' of ')}"
                read.cells.append(
                    cell_of(job, f"{column} {of}", quantity, "x", row=MODULES[module], **spread, file=file)
                )
            mean = geometric_mean(over[name]["median"] for over in passes.values())
            is_paper_s = name == "torch-blas" and dtype == "fp32"
            printed = published("table4", MODULES[module], "Speed-up") if is_paper_s else None
            quantity = "speed-up over it, mean of the three products"
            told: dict[str, Any] = {"value": mean, "published": printed, "file": file}
            read.cells.append(cell_of(job, column, quantity, "x", row=MODULES[module], **told))
    read.notes.append(
        f"Modules of {job.facts['model']} here, of DiT-XL/2 in the paper; nativeBLAS is PyTorch's own library."
    )
    return read


def _fig9(job: Job, result: Mapping[str, Any], file: str) -> Read:
    read, ranks, column = Read(), job.facts["ranks"], job.columns[0]
    places, values, lows, highs = [], [], [], []
    for place, row in enumerate(result["stages"]):
        name = row["label"]
        printed = published("fig9", STEPS.get(row["name"], ""), "Speed-up")
        if row["status"] == "same":
            told = {"row": name, "published": printed, "status": "skipped", "reason": row["reason"]}
            read.cells.append(cell_of(job, column, "speed-up", "x", **told))
            continue
        if row["status"] != "ok" or row.get("speedup") is None:
            status = STATUS.get(row["status"], "skipped") if row["status"] != "ok" else "skipped"
            why = row.get("reason") or "the baseline has no time"
            told = {"row": name, "published": printed, "status": status, "reason": why}
            read.cells.append(cell_of(job, column, "speed-up", "x", **told))
            continue
        told = spread_of(row["speedup"])
        places.append(float(place))
        values.append(told["value"])
        lows.append(told["low"])
        highs.append(told["high"])
        read.cells.append(cell_of(job, column, "speed-up", "x", row=name, **told, published=printed, file=file))
        read.cells.append(
            cell_of(job, f"{column} s", "seconds an iteration", "s", row=name, **spread_of(row["seconds"]), file=file)
        )
    axes: dict[str, Any] = {"x_label": "step", "y_label": "speed-up over the baseline", "unit": "x"}
    read.series.append(
        Series(label=f"measured, {column}", kind="measured", x=tuple(places), y=tuple(values), file=file, **axes)
    )
    if ranks == 1:
        steps = [published("fig9", name, "Speed-up") for name in STEPS.values()]
        points = [1.0, *steps]
        read.series.append(
            Series(label="paper", kind="published", x=tuple(map(float, range(len(points)))), y=tuple(points), **axes)
        )
    if values:
        read.findings.append(f"All parts together are {values[-1]:.2f} x the baseline on {column}; the paper has 8.2.")
    return read


def _scaling(job: Job, result: Mapping[str, Any], file: str) -> Read:
    """Curves of `dithc bench scaling` and `dithc simulate`."""
    read = Read()
    axes: dict[str, Any] = {"x_label": "nodes", "y_label": "efficiency", "unit": ""}
    for curve in result["curves"]:
        if curve["mode"] != MODES[job.target]:
            continue
        kind = curve["kind"]
        model = curve["model"].removeprefix("DiT-")
        batch = f", batch {curve['global_batch']}" if curve.get("global_batch") else ""
        label = f"{curve['label']} {model}{batch}" if kind != "measured" else f"measured {model}{batch}"
        points = curve["points"]
        count = "ranks" if kind == "measured" else "nodes"
        x = tuple(float(point[count]) for point in points)
        y = tuple(_number(point.get("efficiency")) for point in points)
        here = axes | {"x_label": count}
        read.series.append(Series(label=label, kind=kind, x=x, y=y, file=file, **here))
        if kind == "published":
            continue
        for point in points:
            row = f"{label}, {point[count]} {count}"
            read.cells += _point(job, point, row, kind=kind, file=file)
        if kind == "simulated" and curve.get("global_batch"):
            read.series.append(_locally(curve, label, here, file))
    return read


def _point(job: Job, point: Mapping[str, Any], row: str, *, kind: str, file: str) -> Iterable[Cell]:
    if point.get("status", "ok") != "ok":
        status, reason = STATUS.get(point["status"], "skipped"), point["reason"]
        return [cell_of(job, "efficiency", "efficiency", "", row=row, status=status, reason=reason)]
    told: dict[str, Any] = {"row": row, "status": kind, "file": file}
    if kind == "simulated":
        told["reason"] = "played on the described machine, from the seconds of one node and its links"
    found = []
    for column, name, unit in (("efficiency", "efficiency", ""), ("s", "seconds", "s")):
        if (value := _number(point.get(name))) is not None:
            found.append(
                cell_of(job, column, "seconds an iteration" if unit else "efficiency", unit, value=value, **told)
            )
    return found


def _locally(curve: Mapping[str, Any], label: str, axes: Mapping[str, Any], file: str) -> Series:
    """Return the curve with exchange every LOCAL_STEPS steps: exposed time is divided by their number."""
    points = curve["points"]
    work = [point["seconds"] - point["exposed_seconds"] * (1 - 1 / LOCAL_STEPS) for point in points]
    y = tuple(work[0] * points[0]["nodes"] / (one * point["nodes"]) for one, point in zip(work, points, strict=True))
    x = tuple(float(point["nodes"]) for point in points)
    return Series(label=f"{label}, exchanged every {LOCAL_STEPS} steps", kind="simulated", x=x, y=y, file=file, **axes)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _sec56(job: Job, result: Mapping[str, Any], file: str) -> Read:
    read = Read()
    ways = {"linear layers": "training_linear", "with attention": "training_total"}
    for row in result["contenders"]:
        for column, way in ways.items():
            name = f"{job.row} {row['name']}"
            if row["status"] != "ok":
                status = STATUS.get(row["status"], "skipped")
                read.cells.append(
                    cell_of(job, column, "sustained", "TFLOP/s", row=name, status=status, reason=row["reason"])
                )
                continue
            value, timing = row["gflop_per_second"][way] / 1e3, row["seconds"]
            slowest, fastest = (timing["median"] / end(timing["all"]) * value for end in (max, min))
            printed = PER_NODE_TFLOPS.get(column) if row["name"] == "dithc" and job.facts["dtype"] == "fp32" else None
            told = {"row": name, "value": value, "low": min(value, slowest), "high": max(value, fastest)}
            read.cells.append(cell_of(job, column, "sustained", "TFLOP/s", published=printed, file=file, **told))
    energy = result.get("energy") or {"status": "skipped", "reason": "measured by a version that did not ask"}
    told = {"value": energy["images_per_joule"], "file": file} if energy["status"] == "ok" else dict(energy)
    row = f"{job.row} dithc"
    read.cells.append(cell_of(job, "images a joule", "of the processors", "1/J", row=row, **told))
    read.notes.append(
        "The paper's 182.47 TFLOP/s are of 32 nodes, linear layers alone: 5.70 a node, beside which ours stands."
    )
    return read


READERS: Mapping[str, Callable[[Job, Mapping[str, Any], str], Read]] = {
    "table2": _table2,
    "table3": _table3,
    "table4": _table4,
    "fig9": _fig9,
    "fig10": _scaling,
    "fig11": _scaling,
    "sec56": _sec56,
}


def read_result(job: Job, result: Mapping[str, Any], file: str) -> Read:
    """Return a cell's result as `Read`; `file` is relative to the page."""
    read = READERS[job.target](job, result, file)
    seen: dict[str, int] = {}
    for place, cell in enumerate(read.cells):  # rows that differ in signs alone
        seen[cell.id] = seen.get(cell.id, 0) + 1
        if seen[cell.id] > 1:
            read.cells[place] = replace(cell, id=f"{cell.id}-{seen[cell.id]}")
    return read
