"""Tables of restorations: errors of the restoration and of the baselines inside withheld pixels."""

from collections.abc import Mapping, Sequence
from typing import Any

from dithc.core.measurements import ABSENT, rounded
from dithc.report.html.tables import Table, table
from dithc.report.records import ReportRecords

ERRORS = {
    "RMSE": "rmse",
    "MAE": "mae",
    "PSNR dB": "psnr_db",
    "SSIM": "ssim",
    "Angle deg": "sam_degrees",
    "Spectrum dB": "spectrum_db",
    "Seams": "seam_ratio",
    "Restored / method": "ratio",
    "95% interval": "ratio_interval",
    "Median": "ratio_median",
}
DETAILS = {
    "ERGAS": "ergas",
    "Consistency": "consistency",
    "Reflectance": "reflectance",
    "Spectral deg": "spectral_degrees",
    "Shift px": "spatial_pixels",
    "Improvement": "improvement",
    "Omission": "omission",
    "Hallucination": "hallucination",
}
ENSEMBLE = {
    "CRPS": "crps",
    "Coverage": "coverage",
    "Expected": "calibrated_coverage",
    "Spread / error": "spread_over_error",
}
TABLES = {"errors": ERRORS, "coarse bands": DETAILS, "uncertainty": ENSEMBLE}


def restoration_tables(records: ReportRecords) -> dict[str, list[Table]]:
    """Return the tables of each compared restoration by name."""
    return {item.name: _tables(item.name, item.scores) for item in records.restorations if item.scores}


def _tables(name: str, scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Table]:
    found = []
    for title, keys in TABLES.items():
        rows = [
            (group, method, errors)
            for group, methods in scores.items()
            for method, errors in methods.items()
            if (method == "ensemble") == (keys is ENSEMBLE)
            and any(errors.get(key) is not None for key in keys.values())
        ]
        shown = {head: key for head, key in keys.items() if any(row[2].get(key) is not None for row in rows)}
        cells = [
            [group, method, *(_number(errors.get(key)) for key in shown.values())] for group, method, errors in rows
        ]
        if rows:
            found.append(table(f"{name}: {title}", ["Pixels", "Method", *shown], cells, texts=2))
    return found


def _number(value: float | Sequence[float] | None) -> str:
    if isinstance(value, Sequence):
        return " to ".join(map(rounded, value))
    return ABSENT if value is None else rounded(value)
