"""What `dithc bench step` measured: a training step against other ways of computing it, as a table."""

from pathlib import Path
from typing import Any

from dithc.report.documents import read_bench
from dithc.report.words import ABSENT, gib, short, short_or_absent


def read_step(path: Path) -> dict[str, Any]:
    """Read a result of `dithc bench step`; UserError if the file is no such result."""
    return read_bench(path, "step", part="contenders", what="bench of a training step", option="bench")


def bench_parts(bench: dict[str, Any] | None) -> dict[str, Any]:
    """Return a row per contender of `dithc bench step`, and the conditions."""
    if not bench:
        return {"rows": [], "conditions": {}}
    rows = []
    for row in bench.get("contenders", []):
        seconds, rates = row.get("seconds") or {}, row.get("gflop_per_second") or {}
        rows.append(
            {
                "contender": row["name"],
                "status": " ".join(filter(None, [row["status"], row.get("reason")])),
                "seconds a step": _spread(seconds.get("median"), seconds.get("mad")),
                "dithc is faster by": short_or_absent((row.get("speedup_of_dithc") or {}).get("median")),
                "images/s": short_or_absent(row.get("images_per_second")),
                "GFLOP/s": short_or_absent(rates.get("training_total")),
                "linear layers alone": short_or_absent(rates.get("training_linear")),
                "of the matrix ceiling": _share(row.get("share_of_gemm_ceiling")),
                "peak memory of a step": gib(row.get("peak_above_start_bytes")),
            }
        )
    parts = {**bench.get("settings", {}), **bench.get("ceilings", {}), **bench.get("versions", {})}
    conditions = {key: _cell(value) for key, value in parts.items() if not isinstance(value, dict)}
    return {"rows": rows, "conditions": conditions}


def _spread(median: float | None, deviation: float | None) -> str:
    return short_or_absent(median) + ("" if deviation is None else f" ± {short(deviation)}")


def _share(value: dict[str, Any] | None) -> str:
    return ABSENT if value is None else f"{value['median']:.0%}"


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return short(value) if isinstance(value, float) else str(value)
