"""HTML of the report from its records and images. Only this module imports jinja2."""

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from dithc.core.logging import escaping
from dithc.report.assessment import assess_runs, last_scored
from dithc.report.figures import canvas
from dithc.report.formatting import score, span
from dithc.report.galleries import Gallery, Mosaic
from dithc.report.html import alt_text, provenance
from dithc.report.html.engine_parts import engine_parts
from dithc.report.html.restorations import restoration_tables
from dithc.report.html.scores import SMALL_NOTE, measured_tables, score_tables
from dithc.report.records import ReportRecords

TEMPLATES = "dithc.report.html"
BLOCKED = {"base-uri": "'none'", "form-action": "'none'"}
PNG_SIZE = slice(16, 24)  # width and height in the head of a PNG, four bytes each, big-endian


@dataclass(frozen=True, kw_only=True)
class DatasetFigure:
    """A figure of one dataset, with its text alternative `text`."""

    name: str
    title: str
    text: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class PageImages:
    """All images of the page: figures by name, galleries and figures by dataset, previews by run, restorations by name."""

    figures: Mapping[str, bytes]
    galleries: Mapping[str, Sequence[Gallery]]
    drawn: Mapping[str, Sequence[DatasetFigure]]
    strips: Mapping[str, Sequence[Mosaic]]
    restorations: Mapping[str, Gallery]


def render(records: ReportRecords, images: PageImages) -> str:
    """Render the page: HTML with everything inlined and every external text escaped.

    A content policy in its head forbids external loads and all scripts except its script, identified by hash.
    """
    engine, not_run = engine_parts(records)
    return render_template(
        "report.html",
        records=records,
        figures={name: data_uri(canvas.recode_png(png)) for name, png in images.figures.items()},
        sizes={name: size_of(png) for name, png in images.figures.items()},
        images=images,
        texts={name: getattr(alt_text, name)(records) for name in ("loss", "scores", "throughput", "ranks", "stages")},
        engine=engine,
        not_run=not_run,
        **_assessment_values(records),
        **_score_values(records),
        **_provenance_values(records),
    )


def render_template(template: str, *, package: str = TEMPLATES, scripts: Sequence[str] = (), **values: Any) -> str:
    """Render a template with everything inlined and every text escaped.

    Files of the package `package` precede those of this package. Its `scripts` run after the script for enlarging images.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, ".") for name in dict.fromkeys((package, TEMPLATES))]),
        autoescape=True,
        finalize=lambda value: escaping.escaped(value, indent=0) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(score=score, span=span, webp=data_uri, address=quote)
    environment.filters["percent"] = lambda part, total: f"{100 * part / total:.1f}" if total else "0"
    environment.filters["millions"] = lambda value: f"{value / 1e6:,.1f} M"
    script = "".join(
        (files(name) / file).read_text()
        for name, file in [(TEMPLATES, "enlarge.js"), *((package, file_name) for file_name in scripts)]
    )
    return environment.get_template(template).render(policy=_policy(script), script=script, **values)


def _assessment_values(records: ReportRecords) -> dict[str, Any]:
    finals = {run.name: last_scored(records, run.name) for run in records.last_runs}
    return {
        "assessments": assess_runs(records),
        "score_conditions": {
            name: _conditions(records, item.dataset, item.score) for name, item in finals.items() if item and item.score
        },
        "warnings": [text.partition(". ")[::2] for text in records.warnings],
    }


def _conditions(records: ReportRecords, dataset: str, result: Any) -> str:
    counts = f"{result.n_generated:,} generated against {result.n_real:,} real images"
    features = f"features {result.kind or result.extractor}, resize {result.resize}"
    return f"FID, lower is better: {counts}; {features}; rendering {records.dataset(dataset).rendering}."


def _score_values(records: ReportRecords) -> dict[str, Any]:
    return {
        "incomparable": incomparable(records),
        "remarks": remarks(records),
        "score_tables": score_tables(records),
        "small_note": SMALL_NOTE if records.measure == "KID" else "",
        "measured_tables": measured_tables(records),
        "training": provenance.training_table(records),
        "restoration_tables": restoration_tables(records),
        "has_metrics": any(run.curve for run in records.runs),
        "has_ranks": any(run.curve and run.curve.ranks for run in records.runs),
        "has_curves": any(item.curves for item in records.evaluations),
    }


def _provenance_values(records: ReportRecords) -> dict[str, Any]:
    runs = {run.name: run.settings for run in records.runs}
    evaluations = {item.name: item.settings for item in records.evaluations}
    commits = dict.fromkeys(origin.commit for origin in records.origins if origin.commit)
    hosts = dict.fromkeys(origin.host for origin in records.origins)
    results = {
        "commit of the results": ", ".join(commits) or "not recorded",
        "machine of the results": "; ".join(hosts) or "none",
    }
    settings = [
        (subject, *provenance.settings_of(columns, subject=subject))
        for subject, columns in (("runs", runs), ("evaluations", evaluations))
        if columns
    ]
    return {
        "settings": settings,
        "data_pairs": {dataset.name: provenance.data_pairs(records, dataset) for dataset in records.datasets},
        "band_tables": {dataset.name: provenance.band_table(dataset) for dataset in records.datasets},
        "versions": [*results.items(), ("seed of the experiment", str(records.seed)), *records.versions.items()],
        "origins": provenance.origin_table(records),
    }


def _policy(script: str) -> str:
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = {"img-src": "data:", "style-src": "'unsafe-inline'", "script-src": f"'sha256-{digest}'"}
    return "; ".join(f"{kind} {source}" for kind, source in ({"default-src": "'none'"} | allowed | BLOCKED).items())


def data_uri(content: bytes) -> str:
    return f"data:image/webp;base64,{b64encode(content).decode()}"


def size_of(png: bytes) -> tuple[int, int]:
    head = png[PNG_SIZE]
    return int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")


def remarks(records: ReportRecords) -> dict[str, dict[str, list[str]]]:
    """Group remarks of the stages by text."""
    runs: dict[str, list[str]] = {}
    scores: dict[str, list[str]] = {}
    for run in records.runs:
        if run.weights_note:
            runs.setdefault(run.weights_note, []).append(run.name)
    for item in records.evaluations:
        if item.score:
            for text in dict.fromkeys(item.score.warnings):
                if text != item.score.note:
                    scores.setdefault(text, []).append(item.name)
    return {"runs": runs, "scores": scores}


def incomparable(records: ReportRecords) -> dict[str, list[str]]:
    """Group evaluations by the reason that forbids a comparison with published scores."""
    reasons: dict[str, list[str]] = {}
    for item in records.evaluations:
        if item.score and not item.score.comparable_to_published:
            reason = item.score.note or "the extractor differs from the one of published FID"
            reasons.setdefault(reason, []).append(item.name)
    return reasons
