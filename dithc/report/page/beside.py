"""What evaluations ask for beside FID and KID, in words."""

from collections.abc import Mapping
from typing import Any

from dithc.report.facts import Facts


def measured_rows(facts: Facts) -> list[dict[str, str]]:
    """Return a row per evaluation with extra measures: requests and results in words."""
    return [
        {"evaluation": item.name, **found}
        for item in facts.evaluations
        if item.score and (found := _measured(item.score.more))
    ]


def _measured(more: Mapping[str, Any]) -> dict[str, str]:
    row = {}
    for name in ("precision", "recall", "density", "coverage"):
        if more.get(name) is not None:
            row[name] = f"{more[name]:.3f}"
    pixels: Mapping[str, Any] = more.get("pixels") or {}
    bands, indices, spectra = (pixels.get(name, {}) for name in ("bands", "indices", "spectra"))
    if "wasserstein" in bands:
        row[f"distance of bands ({bands['units']})"] = _each(bands["wasserstein"])
    if bands.get("spectral_angle_deg") is not None:
        row["spectral angle"] = f"{bands['spectral_angle_deg']:.3g}°"
        row["correlations differ by"] = _number(bands["correlation_difference"])
    for name, one in indices.items():
        if name != "absent":
            row[f"distance of {name}"] = _number(one["wasserstein"])
    if spectra:
        row["spectra, dB"] = _each(spectra["log_spectral_distance_db"])
    for name, one in (more.get("triplets") or {}).items():
        row[f"{name}: FID, KID"] = f"{_number(one['fid'])}, {_number(one['kid'])}"
    absent = [text for part in pixels.values() for text in part.get("absent", [])]
    return row | ({"absent": "; ".join(absent)} if absent else {})


def _each(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in values.items())


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
