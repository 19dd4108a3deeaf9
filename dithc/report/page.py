"""The one place jinja2 enters: the records and pictures of the report become one HTML page that needs nothing else."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dithc.report.facts import EvaluationFacts, Facts
from dithc.report.figures import short, span
from dithc.report.reference import Reference

TEMPLATE = "report.html"
GIB = 1 << 30


def render(facts: Facts, reference: Reference, *, figures: Mapping[str, tuple[bytes, bytes]], pictures: Mapping[str, bytes]) -> str:
    """The page.

    Args:
        facts: what it says.
        reference: the paper's numbers.
        figures: PNG of each figure for light and for dark screens, by name.
        pictures: PNG of each photograph-like picture (grids of tiles and samples), by name.

    Returns:
        HTML with everything inlined; every text that comes from outside is escaped.
    """
    environment = Environment(
        loader=PackageLoader("dithc.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=_count, short=_short, span=span, millions=_millions, gib=_gib, percent=_percent)
    return environment.get_template(TEMPLATE).render(
        facts=facts,
        reference=reference,
        figures={name: tuple(map(_inline, pair)) for name, pair in figures.items()},
        pictures={name: _inline(content) for name, content in pictures.items()},
        verdicts={dataset.name: verdict(facts, dataset.name) for dataset in facts.datasets},
        incomparable=incomparable(facts),
        bench=bench_parts(facts.bench),
    )


def _inline(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _short(value: float | None) -> str:
    return "–" if value is None else short(value)


def _millions(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f} M"


def _gib(value: int | None) -> str:
    return "–" if value is None else f"{value / GIB:.2f} GiB"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "0"


def verdict(facts: Facts, dataset: str) -> str:
    """How good it is, in one sentence; empty where nothing was scored."""
    scored = [item for item in facts.evaluations_of(dataset) if item.score]
    last = scored[-1].score if scored else None
    if last is None:
        return ""
    said = [_said(item) for item in scored]
    if len(said) == 1:
        text = f"FID is {said[0]}"
    else:
        falls = all(item.score.fid > last.fid for item in scored[:-1] if item.score)
        rises = all(item.score.fid <= last.fid for item in scored[:-1] if item.score)
        verb = "falls from" if falls else "does not fall: from" if rises else "goes from"
        text = f"FID {verb} {', '.join(said[:-1])} to {said[-1]}"
    floor = f"; two halves of the real tiles are {short(last.floor)} apart, which is the floor" if last.floor is not None else ""
    return f"{text}{floor}."


def _said(item: EvaluationFacts) -> str:
    return f"{short(item.score.fid)} {item.label}" if item.score else item.label


def incomparable(facts: Facts) -> dict[str, list[str]]:
    """Why scores may not stand beside published ones: reason -> evaluations."""
    reasons: dict[str, list[str]] = {}
    for item in facts.evaluations:
        if item.score and not item.score.comparable:
            reason = item.score.note or "the extractor is not the one of published FID"
            reasons.setdefault(reason, []).append(item.name)
    return reasons


def bench_parts(bench: dict[str, Any] | None) -> dict[str, Any]:
    """A bench document as a page can show it: plain values, and a table for each list of records."""
    values: dict[str, str] = {}
    tables: dict[str, tuple[list[str], list[list[str]]]] = {}
    for key, value in (bench or {}).items():
        records = value
        if isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
            records = [{"": name, **item} for name, item in value.items()]
        if isinstance(records, list) and records and all(isinstance(item, dict) for item in records):
            columns = list(dict.fromkeys(column for record in records for column in record))
            tables[key] = (columns, [[_cell(record.get(column)) for column in columns] for record in records])
        else:
            values[key] = _cell(value)
    return {"values": values, "tables": tables}


def _cell(value: object) -> str:
    if isinstance(value, float):
        return short(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return "–" if value is None else str(value)
