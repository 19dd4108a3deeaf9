"""Claims of the paper that hold on this machine, by order and direction.

Seconds of another machine are not comparable. Conclusions are: the faster of two, the gain of a stage, the agreement of
losses. Only measured cells count, except for figure 10 (256 nodes), which is simulated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dithc.core.measurements import rounded
from dithc.core.reproduction import STATUSES, ResultCell, TargetResult, published_value
from dithc.report.figures import series as curves

SAME = 0.02  # relative difference below which two values count as equal
CLOSE = 0.05  # difference of efficiency, and relative difference of FID
AT_NODES, AT_EFFICIENCY = 256, 0.906  # section 5.7: weak scaling of XL/2
NOISE = "seeds of the reference"  # column of figure 7, see dithc.workflow.reproduction.curves
Claim = tuple[bool, str]


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """A claim of the paper, and its truth on this machine; `order` is the position of its target among the documents."""

    target: str
    paper: str
    order: int
    holds: bool
    text: str


def check_claims(documents: Sequence[TargetResult]) -> list[ClaimResult]:
    """Return the decidable claims in document order."""
    return [
        ClaimResult(target=document.target, paper=document.paper, order=order, holds=holds, text=text)
        for order, document in enumerate(documents)
        for holds, text in (CLAIMS[document.target](document) if document.target in CLAIMS else ())
    ]


def count(documents: Sequence[TargetResult]) -> dict[str, int]:
    statuses: list[str] = [cell.status for document in documents for cell in document.cells]
    return {status: statuses.count(status) for status in STATUSES if status in statuses}


def _measured(document: TargetResult) -> list[tuple[ResultCell, float]]:
    return [(cell, cell.value) for cell in document.cells if cell.value is not None and cell.status == "measured"]


def _grid(document: TargetResult) -> dict[str, dict[str, tuple[ResultCell, float]]]:
    grid: dict[str, dict[str, tuple[ResultCell, float]]] = {}
    for cell, value in _measured(document):
        grid.setdefault(cell.row, {})[cell.column] = (cell, value)
    return grid


def _strategies(document: TargetResult) -> Iterator[Claim]:
    """Compare the order of strategies in time and memory with table 2."""
    for unit, quantity in (("s", "time"), ("GB", "memory")):
        for strategy in ("DP", "DP+TP"):
            comparisons = []
            for row, cells in _grid(document).items():
                batch, _, model = row.partition(" ")
                printed = _printed(f"{batch} {model}", strategy, unit) or _printed(f"112 {model}", strategy, unit)
                if printed and {f"{strategy} {unit}", f"CFTP {unit}"} <= cells.keys():
                    measured = cells[f"{strategy} {unit}"][1] / cells[f"CFTP {unit}"][1]
                    text = f"{row} {_ratio(measured)} (paper {_ratio(printed)})"
                    comparisons.append((_sign(measured) == _sign(printed), text))
            if comparisons:
                exceptions = [text for agrees, text in comparisons if not agrees]
                name = f"{strategy} over CFTP in {quantity}: ordered as in the paper"
                yield _claim(name, len(comparisons), exceptions)


def _printed(row: str, strategy: str, unit: str) -> float | None:
    baseline, cftp = (published_value("table2", row, f"{name} {unit}") for name in (strategy, "CFTP"))
    return baseline / cftp if baseline and cftp else None


def _claim(name: str, total: int, exceptions: Sequence[str]) -> Claim:
    """Return a claim on all rows of a table, with the exceptions."""
    suffix = f", not for {', '.join(exceptions)}" if exceptions else ""
    return not exceptions, f"{name} for {total - len(exceptions)} of {total}{suffix}."


def _faster_claim(name: str, gains: Mapping[str, float]) -> Claim:
    slower = [f"{row} {_ratio(ratio)}" for row, ratio in gains.items() if ratio <= 1]
    return _claim(f"{name}: {_ratio(min(gains.values()))} to {_ratio(max(gains.values()))}, faster", len(gains), slower)


def _libraries(document: TargetResult) -> Iterator[Claim]:
    """Compare own products with each library (table 3)."""
    for library in ("OpenBLAS", "nativeBLAS", "oneDNN"):
        ratios = {
            row: cells[library][1] / min(seconds)
            for row, cells in _grid(document).items()
            if library in cells and (seconds := [cells[name][1] for name in ("own GEMM", "tuned") if name in cells])
        }
        if ratios:
            yield _faster_claim(f"A step with own products over one with {library}", ratios)


def _modules(document: TargetResult) -> Iterator[Claim]:
    """Compare the products of each module with each library (table 4)."""
    means = [(cell, value) for cell, value in _measured(document) if "mean" in cell.quantity]
    for library in dict.fromkeys(cell.column for cell, _ in means):
        ratios = {cell.row: value for cell, value in means if cell.column == library}
        yield _faster_claim(f"Own products over {library}", ratios)


def _losses(document: TargetResult) -> Iterator[Claim]:
    """Compare the deviation of each platform with the noise of seeds (figure 7)."""
    deviations = [cell for cell in document.cells if cell.quantity.startswith("largest deviation")]
    for row in dict.fromkeys(cell.row for cell in deviations):
        by_platform = {cell.column: cell for cell in deviations if cell.row == row}
        noise = by_platform.pop(NOISE, None)
        if noise is None or noise.value is None:
            continue
        for platform, cell in by_platform.items():
            deviation = f"deviates by {rounded(cell.value, digits=2)}%" if cell.value is not None else cell.reason
            limit = f"seeds of the reference differ by {rounded(noise.value, digits=2)}%"
            holds = cell.value is not None and cell.value <= noise.value
            yield holds, f"{row}: the loss of {platform} {deviation}; {limit}."


def _stages(document: TargetResult) -> Iterator[Claim]:
    """Check that every stage adds (figure 9)."""
    speedups = [(cell, value) for cell, value in _measured(document) if cell.unit == "x"]
    for column in dict.fromkeys(cell.column for cell, _ in speedups):
        values = [(cell.row, value) for cell, value in speedups if cell.column == column]
        if len(values) < 2:
            continue
        slower = [
            f"{after} ({_ratio(value / before)})"
            for (_, before), (after, value) in pairwise(values)
            if value < before * (1 - SAME)
        ]
        total = values[-1][1]
        conclusion = f"slower than the stage before: {', '.join(slower)}" if slower else "no stage makes it slower"
        text = f"{column}: {_ratio(total)} the baseline with all stages, the paper has 8.2 ×; {conclusion}."
        yield not slower and total > 1 + SAME, text


def _scaling(document: TargetResult) -> Iterator[Claim]:
    """Check simulated weak scaling of XL/2 at 256 nodes (figure 10)."""
    simulated = [
        y
        for series in document.series
        if series.kind == "simulated"
        and series.label.startswith("dithc")
        and "XL/2" in series.label
        and not curves.BATCH.search(series.label)
        for x, y in zip(series.x, series.y, strict=True)
        if x == AT_NODES and y is not None
    ]
    if simulated:
        minimum = min(simulated)
        text = f"XL/2 with the exchange of dithc, simulated: {minimum:.1%} at 256 nodes or more; the paper has 90.6%."
        yield minimum >= AT_EFFICIENCY - CLOSE, text


def _fid(document: TargetResult) -> Iterator[Claim]:
    """Compare scores with table 1 if the paper has a comparable score."""
    for cell, value in _measured(document):
        if cell.ratio is not None:
            text = f"{cell.row}, {cell.column}: FID {rounded(value, digits=4)}; the paper has {cell.published}."
            yield cell.ratio <= 1 + CLOSE, text


def _ratio(ratio: float) -> str:
    return f"{rounded(ratio)} ×"


def _sign(ratio: float) -> int:
    return 0 if abs(ratio - 1) <= SAME else 1 if ratio > 1 else -1


CLAIMS: Mapping[str, Callable[[TargetResult], Iterator[Claim]]] = {
    "table1": _fid,
    "table2": _strategies,
    "table3": _libraries,
    "table4": _modules,
    "fig7": _losses,
    "fig9": _stages,
    "fig10": _scaling,
}
