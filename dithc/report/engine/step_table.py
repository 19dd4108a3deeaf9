"""What `dithc bench step` measured: a training step against other ways of computing it, as a table."""

from pathlib import Path
from typing import Any

from dithc.log import problem
from dithc.report.documents import read_json
from dithc.report.words import short

GIB = 1 << 30
ABSENT = "–"


def read_step(path: Path) -> dict[str, Any]:
    """What `dithc bench step --json` wrote.

    Raises:
        UserError: the file is unreadable, or something else.
    """
    content = read_json(path)
    if "contenders" not in content:
        raise problem(
            f"{path} is no bench of a training step",
            got=f"keys {', '.join(content) or 'none'}",
            expected="what `dithc bench step --json` wrote, with `contenders`",
            remedy="run the bench again, or leave out --bench",
        )
    return content


def bench_parts(bench: dict[str, Any] | None) -> dict[str, Any]:
    """What `dithc bench step` measured: a row a contender, and the conditions it was measured under."""
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
                "dithc is faster by": _short((row.get("speedup_of_dithc") or {}).get("median")),
                "images/s": _short(row.get("images_per_second")),
                "GFLOP/s": _short(rates.get("training_total")),
                "linear layers alone": _short(rates.get("training_linear")),
                "of the matrix ceiling": _share(row.get("share_of_gemm_ceiling")),
                "peak memory of a step": _gib(row.get("peak_above_start_bytes")),
            }
        )
    parts = {**bench.get("settings", {}), **bench.get("ceilings", {}), **bench.get("versions", {})}
    conditions = {key: _cell(value) for key, value in parts.items() if not isinstance(value, dict)}
    return {"rows": rows, "conditions": conditions}


def _spread(median: float | None, deviation: float | None) -> str:
    return _short(median) + ("" if deviation is None else f" ± {short(deviation)}")


def _share(value: dict[str, Any] | None) -> str:
    return "–" if value is None else f"{value['median']:.0%}"


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return short(value) if isinstance(value, float) else str(value)


def _short(value: float | None) -> str:
    return ABSENT if value is None else short(value)


def _gib(value: int | None) -> str:
    return ABSENT if value is None else f"{value / GIB:.2f} GiB"
