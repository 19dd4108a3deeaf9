"""Documents of all targets with realistic numbers and every status."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dithc.core.reproduction import ResultCell, ResultImage, Series, TargetResult, published_value
from dithc.data import write_png

ROOT = Path(__file__).parents[3]
MACHINE = {"name": "AMD EPYC", "architecture": "x86_64", "cores": 2, "dies": 1, "memory_gib": 23.5}
VERSIONS = {"dithc": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"}
MODELS = ("XL/2", "L/2", "B/2", "S/2")
STEPS = ("baseline", "GEMM", "+ asynchronous MPI", "+ AI operators", "+ AutoMem", "+ tuning")


def cell(
    target: str, row: str, column: str, quantity: str, unit: str, value: float | None = None, **more: Any
) -> ResultCell:
    """Return a measured cell with an interval, or a cell of another status."""
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{row}-{column}-{quantity}".lower())
    fields: dict[str, Any] = {"status": "measured"} | more
    if value is not None:
        fields = {"file": f"cells/{target}/{name[:20]}.json", "low": 0.97 * value, "high": 1.04 * value} | fields
    return ResultCell(
        id=name, row=row, column=column, quantity=quantity, unit=unit, value=value, predicted_seconds=61.5, digest="30dfb6d05d88",
        command=f"dithc bench {target} --model {row} --json {name[:20]}.json", **fields,
    )  # fmt: skip


def document(target: str, paper: str, title: str, **parts: Any) -> TargetResult:
    """Return a document with a machine, versions and a command."""
    fields: dict[str, Any] = {
        "scale": "node",
        "machine": MACHINE,
        "versions": VERSIONS,
        "digest": "6798ff2c2309",
        "command": f"snakemake --profile profiles/local {target} --configfile config/experiments/paper-node.yaml",
    }
    return TargetResult(target=target, paper=paper, title=title, **(fields | parts))


def table1() -> TargetResult:
    """Return scores of two datasets, one of them skipped."""
    text = "FID: n 2000 against 2000, extractor inception 6726825d0af5, floor 11.87, batch 112, 1000 steps"
    cells = [
        cell("table1", "Sentinel-2", "batch 112", text, "", 31.22, low=29.9, high=33.1, published=29.03),
        cell("table1", "Sentinel-2", "batch 28,672", text, "", status="skipped", reason="28,672 images: 41 GiB"),
        cell("table1", "Gaofen-2", "batch 112", text, "", 48.26, low=46.0, high=50.4),
    ]  # fmt: skip
    note = "Real-sample data, extractor inception: Gaofen-2 is not comparable with the paper's."
    return document("table1", "Table 1", "FID after fine-tuning", cells=cells, notes=[note])


def table2() -> TargetResult:
    """Return every status: measured, out of memory, skipped, simulated."""
    cells = []
    for batch in (112, 224):
        for model, base_s, base_gb in zip(MODELS, (41.0, 23.0, 7.1, 2.9), (19.1, 14.0, 7.4, 4.2), strict=True):
            for column, slower in {"DP+TP": 1.35, "DP": 1.12, "CFTP": 1.0}.items():
                row = f"{batch} {model}"
                is_full = (model == "XL/2" and column != "CFTP") or (row, column) == ("224 L/2", "DP+TP")
                quantities = {"s": ("seconds an iteration", batch / 112 * slower * base_s)}
                quantities["GB"] = ("peak memory of all ranks", slower**3 * base_gb)
                for unit, (quantity, value) in quantities.items():
                    name = f"{column} {unit}"
                    more: dict[str, Any] = {"published": published_value("table2", row, name)}
                    if is_full:
                        more |= {"status": "out of memory", "reason": "killed at the limit of 22 GiB of all ranks"}
                        cells.append(cell("table2", row, name, "", "", **more))
                        continue
                    if row == "224 L/2":
                        more |= {"status": "simulated", "reason": "from batch 112, twice the images"}
                    cells.append(cell("table2", row, name, quantity, unit, value, **more))
    notes = ["Out of memory is decided by a limit on all ranks of a run: cgroup memory.max."]
    return document("table2", "Table 2", "One node: time and memory by strategy", cells=cells, notes=notes)


def table3() -> TargetResult:
    """Return very different libraries, for a logarithmic axis."""
    factors = {"OpenBLAS": 14.0, "nativeBLAS": 2.1, "oneDNN": 1.9, "own GEMM": 1.1, "tuned": 1.0}
    cells = []
    for model, base in zip(MODELS, (66.0, 38.0, 9.6, 3.1), strict=True):
        for column, slower in factors.items():
            more: dict[str, Any] = {"published": published_value("table3", model, column)}
            is_skipped = (column, model) == ("OpenBLAS", "XL/2")
            more |= {"status": "skipped", "reason": "predicted 16 min a step"} if is_skipped else {}
            value = None if is_skipped else base * slower
            cells.append(cell("table3", model, column, "seconds an iteration", "s", value, **more))
    return document("table3", "Table 3", "One node: seconds an iteration by library", cells=cells)


def losses(seed: int, *, steps: int = 300, rough: float = 0.03, offset: float = 0.0) -> list[float]:
    """Return a loss that falls from one."""
    numbers = np.arange(steps)
    noise = np.random.default_rng(seed).normal(0, rough, steps)
    return list((0.13 + 0.88 / (1 + numbers / 24)) * (1 + noise) + offset * np.sin(numbers / 40))


def fig7() -> TargetResult:
    """Return platforms of three seeds, their deviations, and the noise of the seeds."""
    offsets = {"reference": 0.0, "c-fp32": 0.0004, "c-bf16": 0.0023, "numba": 0.0006}
    series = [
        Series(
            label=f"{platform}, batch 2, seed {seed}",
            kind="measured",
            x=range(1, 301),
            y=losses(seed, offset=offset),
            smoothed=losses(seed, rough=0.0, offset=offset),
            file=f"cells/fig7/{platform}-{seed}.json",
            x_label="step",
            y_label="loss",
        )
        for platform, offset in offsets.items()
        for seed in range(3)
    ]
    cells = [
        cell("fig7", one.label, "step 1", "loss", "", one.y[0], published=1.0175)
        for one in series
        if one.label.endswith("0")
    ]
    for column, value in {"seeds of the reference": 1.3, "c-fp32": 0.2, "c-bf16": 1.6}.items():
        cells.append(cell("fig7", "S/2, batch 2", column, "largest deviation of the smoothed loss", "%", value))
    cells.append(cell("fig7", "c-amx", "seed 0", "", "", status="skipped", reason="this machine has no AMX"))
    return document("fig7", "Figure 7", "Loss from scratch on several platforms", cells=cells, series=series)


def fig8(folder: Path) -> TargetResult:
    """Return two mosaics and a missing mosaic."""
    draw = np.random.default_rng(8)
    for name in ("samples", "bands"):
        tiles = [np.kron(draw.random((8, 8, 3)), np.ones((12, 12, 1))) for _ in range(16)]
        rows = [np.concatenate(tiles[start : start + 8], axis=1) for start in (0, 8)]
        folder.mkdir(parents=True, exist_ok=True)
        write_png(folder / f"{name}.png", (255 * np.concatenate(rows)).astype(np.uint8))
    images = [
        ResultImage(label="Samples next to real tiles, RGB", path="samples.png", caption="Above: real", alt="Two rows"),
        ResultImage(label="Band composites", path="bands.png", alt="Two rows of composites"),
        ResultImage(label="Short-wave composites", path="nowhere.png"),
    ]  # fmt: skip
    return document("fig8", "Figure 8", "Samples of fine-tuned models", images=images)


def fig9() -> TargetResult:
    """Return stages on one and two ranks, the last stage skipped."""
    cells = []
    for column, values in {"1 rank": (1, 1.47, 1.49, 1.95, 1.88), "2 ranks": (1, 1.62, 1.7, 2.08, 2.06)}.items():
        for name, value in zip(STEPS, values, strict=False):
            printed = published_value("fig9", name, "Speed-up")
            cells.append(cell("fig9", name, column, "speedup", "x", value, published=printed))
            cells.append(cell("fig9", name, f"{column} s", "seconds an iteration", "s", 0.42 / value))
        skipped = {"status": "skipped", "reason": "no search at this scale"}
        cells.append(cell("fig9", STEPS[-1], column, "speedup", "x", **skipped))
    return document("fig9", "Figure 9", "What each part adds, step by step", cells=cells)


def curve(label: str, kind: Any, x: Sequence[int], loss: float, label_x: str = "nodes") -> Series:
    """Return an efficiency that falls by `lost` with each doubling."""
    y = [1 / (1 + loss * math.log2(one / x[0])) for one in x]
    return Series(
        label=label, kind=kind, x=x, y=y, x_label=label_x, y_label="efficiency", file="cells/fig10/curve.json"
    )


def fig10() -> TargetResult:
    """Return curves of four networks, measured on ranks; published and simulated on nodes."""
    nodes = [2**power for power in range(11)]
    series = [
        curve(f"measured {name}", "measured", (1, 2), loss, "ranks") for name, loss in (("S/2", 0.12), ("B/2", 0.08))
    ]
    series.append(curve("DiT-HC, authors' logs XL/2", "published", nodes[:7], 0.015))
    losses = {f"dithc: hierarchical, fp32 wire {model}": 0.004 * number for number, model in enumerate(MODELS, 1)}
    losses |= {f"DiT-HC's exchange ({variant}) XL/2": 0.016 for variant in ("exposed", "tuned kernels")}
    series += [curve(label, "simulated", nodes, loss) for label, loss in losses.items()]
    cells = [
        cell(
            "fig10", f"{one.label}, {x:g} {one.x_label}", "efficiency", "efficiency", "", y, status=one.kind, reason="r"
        )
        for one in series
        if one.kind != "published"
        for x, y in zip(one.x, one.y, strict=True)
    ]
    return document("fig10", "Figure 10", "Weak scaling", cells=cells, series=series)


def fig11() -> TargetResult:
    """Return strong scaling at three batches."""
    nodes = [2**power for power in range(8)]
    series = [curve("measured S/2, batch 32", "measured", (1, 2), 0.2, "ranks")]
    for batch in (448, 3072, 16384):
        for index, wire in enumerate(("fp32 wire", "bf16 wire", "bf16 wire, ZeRO-1")):
            label = f"dithc: hierarchical, {wire} XL/2, batch {batch}"
            series.append(curve(label, "simulated", nodes, 0.9 / (index + 1)))
    return document("fig11", "Figure 11", "Strong scaling", series=series)


def all_documents(folder: Path) -> list[TargetResult]:
    """Return a document of each type of figure, with images in `folder`."""
    return [table1(), table2(), table3(), fig7(), fig8(folder), fig9(), fig10(), fig11()]
