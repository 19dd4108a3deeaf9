"""Tables of restorations: errors of the restoration and of simple fills inside withheld pixels."""

from collections.abc import Mapping
from typing import Any

from dithc.core.measurements import ABSENT, rounded
from dithc.report.html.tables import Table, table
from dithc.report.records import ReportRecords

HEAD = [
    "Bands",
    "Method",
    "RMSE",
    "MAE",
    "PSNR dB",
    "SSIM",
    "Angle deg",
    "CRPS",
    "Coverage",
    "Expected",
    "Spread / error",
]
ERRORS = ("rmse", "mae", "psnr_db", "ssim", "sam_degrees")
ENSEMBLE = ("crps", "coverage", "calibrated_coverage", "spread_over_error")


def restoration_tables(records: ReportRecords) -> dict[str, Table]:
    """Return the table of each compared restoration by name."""
    return {item.name: _table(item.name, item.scores) for item in records.restorations if item.scores}


def _table(name: str, scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    rows = []
    for group, methods in scores.items():
        for method, errors in methods.items():
            if method != "ensemble" and errors["pixels"]:
                ensemble = methods["ensemble"] if method == "restored" else {}
                values = [errors[key] for key in ERRORS] + [ensemble.get(key) for key in ENSEMBLE]
                rows.append([group, method, *(ABSENT if value is None else rounded(value) for value in values)])
    return table(f"{name}: withheld pixels", HEAD, rows, texts=2)
