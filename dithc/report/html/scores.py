"""Tables of scores: FID and KID of each dataset, and additional measures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dithc.core.measurements import ABSENT, percent, rounded
from dithc.report.formatting import between, score
from dithc.report.html.tables import Cell, Table, table
from dithc.report.records import SMALL, DatasetRecord, EvaluationRecord, ReportRecords, Score

SMALL_NOTE = (
    f"KID comes first because a set has fewer than {SMALL:,} images. With n images FID has a bias that depends on n. KID is "
    "unbiased and may be slightly below 0. Its interval covers another draw of as many independent images and tiles, but not "
    "another training run."
)


def score_tables(records: ReportRecords) -> list[Table]:
    return [_score_table(records, dataset) for dataset in records.datasets if records.evaluations_of(dataset.name)]


def _score_table(records: ReportRecords, dataset: DatasetRecord) -> Table:
    items = records.evaluations_of(dataset.name)
    best = records.best(dataset.name)
    extractors = list(dict.fromkeys(_features(item.score) for item in items if item.score))
    features = extractors[0] if len(extractors) == 1 else "features of several networks" if extractors else "not run"
    last = ["Features"] if len(extractors) > 1 else []
    rows = [[*_row(records, item), *(Cell(text=_features(item.score)) for _ in last)] for item in items]
    return Table(
        caption=f"Scores of {dataset.title}: {features}; rendering {dataset.rendering}",
        head=["Weights", "Sampler", *measures(records), "Floor of FID", "Real", "Generated", *last],
        rows=rows,
        texts=2,
        best=items.index(best) if best else None,
    )


def measures(records: ReportRecords) -> tuple[str, str]:
    """Return the primary and the secondary measure."""
    return ("KID", "FID") if records.measure == "KID" else ("FID", "KID")


def _row(records: ReportRecords, item: EvaluationRecord) -> list[Cell]:
    name = Cell(text=item.label, notes=[item.name + ("" if item.checkpoint == "codec" else f", {item.weights}")])
    notes = [item.guided] if item.guided else []
    sampler = Cell(text=ABSENT if item.checkpoint == "codec" else item.solver, notes=notes)
    scores = item.score
    if scores is None:
        return [name, sampler, Cell(text="not run"), *[Cell(text=ABSENT)] * 4]
    values = {
        "FID": _score_cell(scores.fid, None, strong=records.measure == "FID"),
        "KID": _score_cell(scores.kid, scores.kid_interval, strong=records.measure == "KID"),
    }
    real = Cell(text=f"{scores.n_real:,}", notes=[f"split {item.real_split}", *_clipped(scores.clipped_real)])
    return [name, sampler, *(values[key] for key in measures(records)), _floor(scores), real, _generated(scores)]


def _score_cell(value: float | None, interval: list[float] | None, *, strong: bool = False) -> Cell:
    notes = [between(interval)] if interval else []
    text = ABSENT if value is None else score(value)
    return Cell(text=text, notes=notes, title="" if value is None else str(value), strong=strong)


def _floor(scores: Score) -> Cell:
    notes = [f"n = {' / '.join(f'{n:,}' for n in scores.floor_n)}"] if scores.floor_n else []
    notes += [f"at n = {scores.n:,}: {score(scores.floor_at_n)}"] if scores.floor_at_n is not None else []
    return replace(_score_cell(scores.floor, None), notes=notes)


def _generated(scores: Score) -> Cell:
    notes = _clipped(scores.clipped_generated)
    if scores.memorized_fraction is not None:
        held_out = "unknown" if scores.memorized_fraction_val is None else percent(scores.memorized_fraction_val)
        notes += [f"copies {percent(scores.memorized_fraction)}", f"held-out {held_out}"]
    return Cell(text=f"{scores.n_generated:,}", notes=notes)


def _clipped(share: float | None) -> list[str]:
    return [] if share is None else [f"clipped {percent(share)}"]


def _features(scores: Score | None) -> str:
    if scores is None:
        return ABSENT
    comparable = (
        "comparable with published FID" if scores.comparable_to_published else "NOT COMPARABLE with published FID"
    )
    return f"{comparable}; features of {scores.extractor} (sha256 {scores.sha256[:12]}), resize {scores.resize}"


def measured_tables(records: ReportRecords) -> list[Table]:
    return [
        table(f"Additional measures of {item.name}", ["Measure", "Value"], rows, texts=2)
        for item in records.evaluations
        if item.score
        and (
            rows := [
                list(pair)
                for pair in _extra_rows(item.score.more | {"detectability": item.score.detectability}).items()
            ]
        )
    ]


def _extra_rows(metrics: Mapping[str, Any]) -> dict[str, str]:
    row = {}
    for scale, found in (metrics.get("detectability") or {}).items():
        cause = max(found["groups"], key=found["groups"].get)
        row[f"detectability at {scale} (AUC)"] = f"{found['auc']:.2f} {between(found['interval'])}, most by {cause}"
    for name in ("precision", "recall"):
        if metrics.get(name) is not None:
            row[name] = f"{metrics[name]:.3f}"
    pixels: Mapping[str, Any] = metrics.get("pixels") or {}
    bands, indices, spectra = (pixels.get(name, {}) for name in ("bands", "indices", "spectra"))
    if "wasserstein" in bands:
        row[f"distance of bands ({bands['units']})"] = _by_band(bands["wasserstein"])
    if bands.get("spectral_angle_deg") is not None:
        row["spectral angle"] = f"{bands['spectral_angle_deg']:.3g}°"
        row["difference of correlations"] = rounded(bands["correlation_difference"])
    for name, distances in indices.items():
        if name != "absent":
            row[f"distance of {name}"] = rounded(distances["wasserstein"])
    if spectra:
        row["spectra, dB"] = _by_band(spectra["log_spectral_distance_db"])
    for name, distances in (metrics.get("triplets") or {}).items():
        row[f"{name}: FID, KID"] = f"{rounded(distances['fid'])}, {rounded(distances['kid'])}"
    absent = [text for part in pixels.values() for text in part.get("absent", [])]
    return row | ({"absent": "; ".join(absent)} if absent else {})


def _by_band(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {rounded(value)}" for name, value in values.items())
