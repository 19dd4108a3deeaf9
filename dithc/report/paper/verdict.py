"""Which claims of the paper hold here, judged by order and direction instead of seconds.

Seconds of another machine are not comparable; conclusions are: the faster of two, the gain of a step, the course of a curve.
Only measured cells count, except for figure 10 (256 nodes), whose verdict names the simulation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dithc.papers import STATUSES, Cell, Document, published
from dithc.papers.numbers import rounded
from dithc.report.paper.losses import Platform, deviation_of, groups_of
from dithc.report.paper.scaling import BATCH

SAME = 0.02  # of a ratio: two that are as near are alike
CLOSE = 0.05  # of efficiency
AT_NODES, AT_EFFICIENCY = 256, 0.906  # section 5.7: weak scaling of XL/2


Claim = tuple[bool, str]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim of the paper, and whether it holds here; `order` is the position of its target among the documents."""

    target: str
    paper: str
    order: int
    holds: bool
    text: str


def judge(documents: Sequence[Document]) -> list[Judgement]:
    """Return the decidable claims in document order."""
    return [
        Judgement(target=one.target, paper=one.paper, order=order, holds=holds, text=text)
        for order, one in enumerate(documents)
        for holds, text in (CLAIMS[one.target](one) if one.target in CLAIMS else ())
    ]


def count(documents: Sequence[Document]) -> dict[str, int]:
    """Count cells by status over all documents."""
    every: list[str] = [cell.status for one in documents for cell in one.cells]
    return {status: every.count(status) for status in STATUSES}


def _grid(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Return measured values by row and column."""
    found: dict[str, dict[str, float]] = {}
    for cell in cells:
        if cell.value is not None and cell.status == "measured":
            found.setdefault(cell.row, {})[cell.column] = cell.value
    return found


def _strategies(document: Document) -> Iterator[Claim]:
    """Judge table 2: the faster strategy, and the smaller memory, by network."""
    for unit, word in (("s", "time"), ("GB", "memory")):
        for other in ("DP", "DP+TP"):
            agree: list[str] = []
            differ: list[str] = []
            for row, values in _grid(document.cells).items():
                batch, _, model = row.partition(" ")
                ours = _ratio(values.get(f"{other} {unit}"), values.get(f"CFTP {unit}"))
                theirs = _printed(batch, model, other, unit) or _printed("112", model, other, unit)
                if ours and theirs:
                    said = f"{row} {_times(ours)} (paper {_times(theirs)})"
                    (agree if _sign(ours) == _sign(theirs) else differ).append(said)
            if agree or differ:
                what = f"{other} over CFTP in {word}"
                yield (
                    not differ,
                    f"{what}: ordered as in the paper for {len(agree)} of {len(agree) + len(differ)} sizes"
                    + (f", not for {', '.join(differ)}." if differ else "."),
                )


def _printed(batch: str, model: str, other: str, unit: str) -> float | None:
    theirs, cftp = (published("table2", f"{batch} {model}", f"{one} {unit}") for one in (other, "CFTP"))
    return _ratio(theirs, cftp)


def _libraries(document: Document) -> Iterator[Claim]:
    """Judge table 3: own products are faster than each library's."""
    rows = _grid([cell for cell in document.cells if cell.unit == "s"])
    for library in ("OpenBLAS", "nativeBLAS", "oneDNN"):
        found = {
            row: values[library] / min(own)
            for row, values in rows.items()
            if library in values and (own := [values[name] for name in ("own GEMM", "tuned") if name in values])
        }
        if found:
            yield _faster(f"A step with our products over one with {library}", found)


def _faster(what: str, found: Mapping[str, float]) -> Claim:
    """Return whether all are faster, with the range, or name the others."""
    slower = [f"{row} {_times(ratio)}" for row, ratio in found.items() if ratio <= 1]
    least, most = min(found.values()), max(found.values())
    span = _times(least) if _times(least) == _times(most) else f"{_times(least)[:-2]} to {_times(most)}"
    count = f"{len(found) - len(slower)} of {len(found)}"
    return not slower, f"{what}: {span}, faster for {count}" + (f", not for {', '.join(slower)}." if slower else ".")


def _modules(document: Document) -> Iterator[Claim]:
    """Judge table 4: products of each module are faster than each library's."""
    means = [cell for cell in document.cells if cell.status == "measured" and "mean" in cell.quantity]
    for library in dict.fromkeys(cell.column for cell in means):
        own = {cell.row: cell.value for cell in means if cell.column == library and cell.value is not None}
        yield _faster(f"Our products over {library}", own)


def _losses(document: Document) -> Iterator[Claim]:
    """Judge figure 7: the losses of two platforms agree."""
    for platforms in groups_of(document):
        yield from _of_group(platforms)


def _of_group(platforms: Sequence[Platform]) -> Iterator[Claim]:
    if len(seeds := platforms[0].smoothed) < 2:
        return
    limit = float(np.nanmax(seeds.max(axis=0) - seeds.min(axis=0)))
    within: list[str] = []
    beyond: list[str] = []
    for platform in platforms[1:]:
        found = deviation_of(platform, platforms[0])
        if any(value is None for one in platform.curves for value in one.y):
            beyond.append(f"{platform.name} (its loss is no number at some step)")
            continue
        if found is None or not np.isfinite(found).any():
            continue
        most = float(np.nanmax(np.abs(found)))
        (within if most <= limit else beyond).append(f"{platform.name} {rounded(most, digits=2)}")
    group = f" ({platforms[0].group})" if platforms[0].group else ""
    against = f"from {platforms[0].name}{group}, largest deviation of the smoothed loss"
    if within:
        yield True, f"Alike {against}: {', '.join(within)}; two seeds differ by up to {rounded(limit, digits=2)}."
    if beyond:
        yield False, f"Beyond what two seeds differ by ({rounded(limit, digits=2)}) {against}: {', '.join(beyond)}."


def _steps(document: Document) -> Iterator[Claim]:
    """Judge figure 9: every step adds, and all together far exceed the baseline."""
    own = [cell for cell in document.cells if cell.unit == "x" and cell.status == "measured"]
    for column in dict.fromkeys(cell.column for cell in own):
        values = [(cell.row, cell.value) for cell in own if cell.column == column and cell.value is not None]
        lost = [
            f"{after} ({_times(value / before)})"
            for (_, before), (after, value) in pairwise(values)
            if value < before * (1 - SAME)
        ]
        if len(values) < 2:
            continue
        total = f"{column}: {_times(values[-1][1])} the baseline with all steps, the paper has 8.2 ×"
        if lost:
            yield False, f"{total}; slower than the step before, where the paper gains: {', '.join(lost)}."
        else:
            yield values[-1][1] > 1 + SAME, f"{total}; no step makes it slower."


def _scaling(document: Document) -> Iterator[Claim]:
    """Judge figure 10: weak scaling of XL/2 to 256 nodes stays near 1; few measured ranks do not count."""
    simulated = [
        y
        for one in document.series
        if one.kind == "simulated"
        and "XL/2" in one.label
        and not BATCH.search(one.label)
        and one.label.startswith("dithc")
        for x, y in zip(one.x, one.y, strict=True)
        if x == AT_NODES and y is not None
    ]
    if simulated:
        least, most = 100 * min(simulated), 100 * max(simulated)
        span = f"{least:.1f} %" if least == most else f"{least:.1f} to {most:.1f} %"
        holds = min(simulated) >= AT_EFFICIENCY - CLOSE
        yield (
            holds,
            f"XL/2 with dithc's exchange, simulated: {span} at 256 nodes; the paper has 90.6 %, 5 points below still hold.",
        )


def _fid(document: Document) -> Iterator[Claim]:
    """Judge table 1 where the paper has comparable scores."""
    for cell in document.cells:
        if cell.ratio is not None and cell.status == "measured":
            holds = cell.ratio <= 1 + CLOSE
            yield (
                holds,
                f"{cell.row}, {cell.column}: FID {rounded(cell.value or 0, digits=4)}; the paper has {cell.published}.",
            )


def _times(ratio: float) -> str:
    return f"{rounded(ratio, digits=3)} ×"


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _sign(ratio: float) -> int:
    return 0 if abs(ratio - 1) <= SAME else 1 if ratio > 1 else -1


CLAIMS: Mapping[str, Callable[[Document], Iterator[Claim]]] = {
    "table1": _fid,
    "table2": _strategies,
    "table3": _libraries,
    "table4": _modules,
    "fig7": _losses,
    "fig9": _steps,
    "fig10": _scaling,
}
