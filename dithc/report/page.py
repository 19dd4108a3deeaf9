"""The one place jinja2 enters: the records and pictures of the report become one HTML page that needs nothing else."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dithc.report.automem import automem_parts
from dithc.report.facts import SMALL, Facts
from dithc.report.pixels_figure import measured_rows
from dithc.report.reference import Reference
from dithc.report.scaling import scaling_parts
from dithc.report.stepwise import stepwise_parts
from dithc.report.strategies import strategy_parts
from dithc.report.verdict import verdict
from dithc.report.words import between, score, short, span

TEMPLATE = "report.html"
GIB = 1 << 30


def render(
    facts: Facts, reference: Reference, *, figures: Mapping[str, tuple[bytes, bytes]], pictures: Mapping[str, bytes]
) -> str:
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
    environment.filters.update(
        count=_count,
        short=_short,
        score=_score,
        span=span,
        millions=_millions,
        gib=_gib,
        percent=_percent,
        between=between,
    )
    return environment.get_template(TEMPLATE).render(
        facts=facts,
        small=SMALL,
        measures=sorted(("FID", "KID"), key=lambda name: name != facts.measure),
        reference=reference,
        figures={name: tuple(map(_inline, pair)) for name, pair in figures.items()},
        pictures={name: _inline(content) for name, content in pictures.items()},
        verdicts={dataset.name: verdict(facts, dataset.name) for dataset in facts.datasets},
        incomparable=incomparable(facts),
        remarks=remarks(facts),
        measured=measured_rows(facts),
        bench=bench_parts(facts.bench),
        strategies=strategy_parts(facts.strategies, reference.tables.get("table2")),
        scaling=scaling_parts(facts.scaling),
        stepwise=stepwise_parts(facts.stepwise, facts.stepwise_paper),
        automem=automem_parts(facts.automem),
    )


def _inline(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _short(value: float | None) -> str:
    return "–" if value is None else short(value)


def _score(value: float | None) -> str:
    return "–" if value is None else score(value)


def _millions(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f} M"


def _gib(value: int | None) -> str:
    return "–" if value is None else f"{value / GIB:.2f} GiB"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "0"


def remarks(facts: Facts) -> dict[str, dict[str, list[str]]]:
    """What the stages remarked, each text once with those it is about."""
    runs: dict[str, list[str]] = {}
    scores: dict[str, list[str]] = {}
    for run in facts.runs:
        if run.weights_note:
            runs.setdefault(run.weights_note, []).append(run.name)
    for item in facts.evaluations:
        if item.score:
            for text in item.score.warnings:
                if text != item.score.note:
                    scores.setdefault(text, []).append(item.name)
    return {"runs": runs, "scores": scores}


def incomparable(facts: Facts) -> dict[str, list[str]]:
    """Why scores may not stand beside published ones: reason -> evaluations."""
    reasons: dict[str, list[str]] = {}
    for item in facts.evaluations:
        if item.score and not item.score.comparable:
            reason = item.score.note or "the extractor is not the one of published FID"
            reasons.setdefault(reason, []).append(item.name)
    return reasons


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
