"""Claims of the paper that hold on this machine, by order and direction.

Seconds of another machine are not comparable. Conclusions are: the faster of two, the gain of a stage, the agreement of
losses. Only measured cells count, except for figure 10 (256 nodes), which is simulated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dithc.core.reproduction import STATUSES, ResultCell, TargetResult, published_value
from dithc.core.summaries import rounded
from dithc.report.reproduction.curves import BATCH

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


def claims(documents: Sequence[TargetResult]) -> list[ClaimResult]:
    """Return the decidable claims in document order."""
    return [
        ClaimResult(target=one.target, paper=one.paper, order=order, holds=holds, text=text)
        for order, one in enumerate(documents)
        for holds, text in (CLAIMS[one.target](one) if one.target in CLAIMS else ())
    ]


def count(documents: Sequence[TargetResult]) -> dict[str, int]:
    every: list[str] = [cell.status for one in documents for cell in one.cells]
    return {status: every.count(status) for status in STATUSES if status in every}


def _measured(document: TargetResult) -> list[tuple[ResultCell, float]]:
    return [(cell, cell.value) for cell in document.cells if cell.value is not None and cell.status == "measured"]


def _grid(document: TargetResult) -> dict[str, dict[str, tuple[ResultCell, float]]]:
    """Return measured cells by row and column."""
    found: dict[str, dict[str, tuple[ResultCell, float]]] = {}
    for cell, value in _measured(document):
        found.setdefault(cell.row, {})[cell.column] = (cell, value)
    return found


def _strategies(document: TargetResult) -> Iterator[Claim]:
    """Compare the order of strategies in time and memory with table 2."""
    for unit, word in (("s", "time"), ("GB", "memory")):
        for other in ("DP", "DP+TP"):
            found = []
            for row, cells in _grid(document).items():
                batch, _, model = row.partition(" ")
                printed = _printed(f"{batch} {model}", other, unit) or _printed(f"112 {model}", other, unit)
                if printed and {f"{other} {unit}", f"CFTP {unit}"} <= cells.keys():
                    ours = cells[f"{other} {unit}"][1] / cells[f"CFTP {unit}"][1]
                    text = f"{row} {_times(ours)} (paper {_times(printed)})"
                    found.append((_sign(ours) == _sign(printed), text))
            if found:
                differ = [text for agrees, text in found if not agrees]
                what = f"{other} over CFTP in {word}: ordered as in the paper"
                yield _share(what, len(found), differ)


def _printed(row: str, other: str, unit: str) -> float | None:
    theirs, cftp = (published_value("table2", row, f"{name} {unit}") for name in (other, "CFTP"))
    return theirs / cftp if theirs and cftp else None


def _share(what: str, total: int, others: Sequence[str]) -> Claim:
    """Return a claim on all rows of a table, with the exceptions."""
    rest = f", not for {', '.join(others)}" if others else ""
    return not others, f"{what} for {total - len(others)} of {total}{rest}."


def _faster(what: str, found: Mapping[str, float]) -> Claim:
    """Return the claim that all ratios exceed 1."""
    slower = [f"{row} {_times(ratio)}" for row, ratio in found.items() if ratio <= 1]
    return _share(f"{what}: {_times(min(found.values()))} to {_times(max(found.values()))}, faster", len(found), slower)


def _libraries(document: TargetResult) -> Iterator[Claim]:
    """Compare own products with each library (table 3)."""
    for library in ("OpenBLAS", "nativeBLAS", "oneDNN"):
        found = {
            row: cells[library][1] / min(own)
            for row, cells in _grid(document).items()
            if library in cells and (own := [cells[name][1] for name in ("own GEMM", "tuned") if name in cells])
        }
        if found:
            yield _faster(f"A step with own products over one with {library}", found)


def _modules(document: TargetResult) -> Iterator[Claim]:
    """Compare the products of each module with each library (table 4)."""
    means = [(cell, value) for cell, value in _measured(document) if "mean" in cell.quantity]
    for library in dict.fromkeys(cell.column for cell, _ in means):
        found = {cell.row: value for cell, value in means if cell.column == library}
        yield _faster(f"Own products over {library}", found)


def _losses(document: TargetResult) -> Iterator[Claim]:
    """Compare the deviation of each platform with the noise of seeds (figure 7)."""
    deviations = [cell for cell in document.cells if cell.quantity.startswith("largest deviation")]
    for row in dict.fromkeys(cell.row for cell in deviations):
        own = {cell.column: cell for cell in deviations if cell.row == row}
        noise = own.pop(NOISE, None)
        if noise is None or noise.value is None:
            continue
        for platform, cell in own.items():
            far = f"deviates by {rounded(cell.value, digits=2)}%" if cell.value is not None else cell.reason
            limit = f"seeds of the reference differ by {rounded(noise.value, digits=2)}%"
            yield cell.value is not None and cell.value <= noise.value, f"{row}: the loss of {platform} {far}; {limit}."


def _stages(document: TargetResult) -> Iterator[Claim]:
    """Check that every stage adds (figure 9)."""
    own = [(cell, value) for cell, value in _measured(document) if cell.unit == "x"]
    for column in dict.fromkeys(cell.column for cell, _ in own):
        values = [(cell.row, value) for cell, value in own if cell.column == column]
        if len(values) < 2:
            continue
        lost = [
            f"{after} ({_times(value / before)})"
            for (_, before), (after, value) in pairwise(values)
            if value < before * (1 - SAME)
        ]
        total = values[-1][1]
        end = f"slower than the stage before: {', '.join(lost)}" if lost else "no stage makes it slower"
        text = f"{column}: {_times(total)} the baseline with all stages, the paper has 8.2 ×; {end}."
        yield not lost and total > 1 + SAME, text


def _scaling(document: TargetResult) -> Iterator[Claim]:
    """Check simulated weak scaling of XL/2 at 256 nodes (figure 10)."""
    simulated = [
        y
        for one in document.series
        if one.kind == "simulated"
        and one.label.startswith("dithc")
        and "XL/2" in one.label
        and not BATCH.search(one.label)
        for x, y in zip(one.x, one.y, strict=True)
        if x == AT_NODES and y is not None
    ]
    if simulated:
        least = min(simulated)
        text = f"XL/2 with the exchange of dithc, simulated: {least:.1%} at 256 nodes or more; the paper has 90.6%."
        yield least >= AT_EFFICIENCY - CLOSE, text


def _fid(document: TargetResult) -> Iterator[Claim]:
    """Compare scores with table 1 if the paper has a comparable score."""
    for cell, value in _measured(document):
        if cell.ratio is not None:
            text = f"{cell.row}, {cell.column}: FID {rounded(value, digits=4)}; the paper has {cell.published}."
            yield cell.ratio <= 1 + CLOSE, text


def _times(ratio: float) -> str:
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
