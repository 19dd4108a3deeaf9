"""Summary of `dithc bench step`: a training step by variant, and the ceilings of the machine."""

from collections.abc import Mapping
from typing import Any

from dithc.core.summaries import ABSENT, Measurement, Table, gib, percent, rounded, short, with_deviation

HEAD = [
    *("Variant", "s per step", "dithc is faster by", "Images/s", "GFLOP/s", "Linear layers alone", "Of FMA peak"),
    *("Of the matrix ceiling", "Peak memory of a step"),
]
CEILINGS = {"multiply_add": "FMA", "gemm": "matrix product of PyTorch", "copy": "copy"}


def step_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the variants and the ceilings."""
    settings, ceilings = result["settings"], result["ceilings"]
    fma = f"FMA {ceilings['multiply_add_gflop_per_second']:.1f} GFLOP/s, " if ceilings["multiply_add_unit"] else ""
    notes = [
        f"ceilings: {fma}matrix product of PyTorch of {ceilings['gemm_size']}^3 "
        f"{ceilings['gemm_gflop_per_second']:.1f} GFLOP/s, copy {ceilings['copy_gb_per_second']:.1f} GB/s read and written"
    ]
    if gains := ceilings.get("all_clusters_over_one"):
        texts = [f"{CEILINGS[name]} {with_deviation(gain)} ×" for name, gain in gains.items()]
        notes.append(f"all core clusters over one, in the same rounds: {', '.join(texts)}")
    return Measurement(
        title=f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}, {settings['threads']} thread(s), "
        f"median of {settings['repeats']} steps after {settings['warmup']}",
        tables=[Table(title="Training step by variant", head=HEAD, rows=[_row(row) for row in result["contenders"]])],
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
