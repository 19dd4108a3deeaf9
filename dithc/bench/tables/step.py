"""Summaries of training steps: `dithc bench step` by variant, and `stepwise` by component."""

from collections.abc import Mapping
from typing import Any

from dithc.core.measurements import ABSENT, Measurement, Table, gib, percent, rounded, short, with_deviation

HEAD = [
    *("Variant", "s per step", "dithc is faster by", "Images/s", "GFLOP/s", "Linear layers alone", "Of FMA peak"),
    *("Of the matrix ceiling", "Peak memory of a step"),
]
STAGE_COLUMNS = ["Stage", "Adds", "s per step", "Speedup", "Over the stage before", "Page faults per step"]
CEILINGS = {"multiply_add": "FMA", "gemm": "matrix product of PyTorch", "copy": "copy"}


def step_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the variants and the ceilings."""
    settings, ceilings = result["settings"], result["ceilings"]
    fma = f"FMA {ceilings['multiply_add_gflop_per_second']:.1f} GFLOP/s, " if ceilings["multiply_add_unit"] else ""
    notes = [
        f"ceilings: {fma}matrix product of PyTorch of {ceilings['gemm_size']}^3 "
        f"{ceilings['gemm_gflop_per_second']:.1f} GFLOP/s, copy {ceilings['copy_gb_per_second']:.1f} GB/s read and written"
    ]
    for row in result["variants"]:
        if row["name"] == result["best_peer"]:
            gain = f"; dithc is faster by {with_deviation(row['speedup_of_dithc'])}" if row["speedup_of_dithc"] else ""
            notes.append(f"fastest of PyTorch in the same precision: {row['name']}{gain}")
    notes.append(f"torch {result['versions']['torch']}, oneDNN {result['versions']['onednn']}")
    if gains := ceilings.get("all_clusters_over_one"):
        texts = [f"{CEILINGS[name]} {with_deviation(gain)} ×" for name, gain in gains.items()]
        notes.append(f"all core clusters over one, in the same rounds: {', '.join(texts)}")
    return Measurement(
        title=f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}, {settings['threads']} thread(s), "
        f"median of {settings['rounds']} steps after {settings['warmup']}",
        tables=[Table(title="Training step by variant", head=HEAD, rows=[_row(row) for row in result["variants"]])],
        notes=notes,
        conditions={name: str(value) for name, value in (settings | result["versions"]).items()},
    )


def _row(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [row["name"], f"{row['status']}: {row['reason']}", *[ABSENT] * (len(HEAD) - 2)]
    rates = row["gflop_per_second"]
    return [
        *(row["name"], with_deviation(row["seconds"]), rounded((row["speedup_of_dithc"] or {}).get("median"))),
        *(short(row["images_per_second"]), short(rates["training_total"]), short(rates["training_linear"])),
        *(percent((row[name] or {}).get("median")) for name in ("share_of_peak", "share_of_gemm_ceiling")),
        gib(row["peak_above_start_bytes"]),
    ]


def stepwise_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the stages, and the differences of their losses."""
    settings, ranks, stages = result["settings"], result["ranks"], result["stages"]
    measured = [row for row in stages if row["status"] == "ok"]
    notes = [f"{row['label']}: {row['status']}: {row['reason']}" for row in stages if row["status"] != "ok"]
    if measured and all(row["speedup"] is None for row in measured):
        notes.append("no speedup: the baseline was omitted, or failed")
    gaps = [row["largest_difference_of_losses"] for row in measured if row["largest_difference_of_losses"] is not None]
    if gaps:
        notes.append(f"losses differ by at most {max(gaps):.1e} of their size, because kernels round differently")
    return Measurement(
        title=f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}, {ranks['ranks']} rank(s) × {ranks['cpus']} "
        f"thread(s), medians of {settings['rounds']} interleaved runs of {settings['steps']} steps",
        tables=[Table(title="Speedup by stage", head=STAGE_COLUMNS, rows=[_stage(row) for row in stages], texts=2)],
        notes=notes,
    )


def _stage(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [row["label"], row["description"], row["status"], *[ABSENT] * (len(STAGE_COLUMNS) - 3)]
    numbers = (with_deviation(row[name]) for name in ("seconds", "speedup", "speedup_over_previous"))
    return [row["label"], row["description"], *numbers, f"{row['page_faults']:,.0f}"]
