"""What was reproduced, in plain words: which claims of the paper hold here, judged by order and direction, not by seconds.

Seconds of another machine say nothing about a claim; what the paper concludes from them does: which of two is faster, whether
each step adds something, whether a curve follows another. A claim is judged only from cells that were measured or simulated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dithc.papers import STATUSES, Cell, Document, published
from dithc.report.paper.losses import deviation_of, noise_of, platforms_of
from dithc.report.words import rounded

SAME = 0.02  # of a ratio: two that are as near are alike
CLOSE = 0.05  # of efficiency
AT_NODES, AT_EFFICIENCY = 256, 0.906  # section 5.7: weak scaling of XL/2


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim of the paper, and whether it holds here.

    Attributes:
        target: whose claim it is.
        paper: heading of the target.
        holds: whether it does.
        text: what was found, in a sentence.
    """

    target: str
    paper: str
    holds: bool
    text: str


def judge(documents: Sequence[Document]) -> list[Judgement]:
    """Claims that can be judged, in the order of the documents."""
    return [
        Judgement(target=one.target, paper=one.paper, holds=holds, text=text)
        for one in documents
        for holds, text in CLAIMS.get(one.target, _none)(one)
    ]


def count(documents: Sequence[Document]) -> dict[str, int]:
    """Cells by status, of all documents."""
    every = [cell.status for one in documents for cell in one.cells]
    return {status: every.count(status) for status in STATUSES}


def _none(document: Document) -> Iterator[tuple[bool, str]]:
    return iter(())


def _grid(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Values by row and column."""
    found: dict[str, dict[str, float]] = {}
    for cell in cells:
        if cell.value is not None:
            found.setdefault(cell.row, {})[cell.column] = cell.value
    return found


def _strategies(document: Document) -> Iterator[tuple[bool, str]]:
    """Table 2: which strategy is faster, and which needs less memory, for each network."""
    for unit, word in (("s", "faster"), ("GB", "smaller in memory")):
        for other in ("DP", "DP+TP"):
            agree, differ = [], []
            for row, values in _grid(document.cells).items():
                batch, _, model = row.partition(" ")
                ours = _ratio(values.get(f"{other} {unit}"), values.get(f"CFTP {unit}"))
                names = [
                    published("table2", f"{known} {model}", f"{one} {unit}")
                    for known in (batch, 112)
                    for one in (other, "CFTP")
                ]
                theirs = _ratio(*names[:2]) or _ratio(*names[2:])
                if ours and theirs:
                    is_alike = _sign(ours) == _sign(theirs)
                    (agree if is_alike else differ).append(
                        f"{row} ({rounded(ours, digits=3)} ×, paper {rounded(theirs, digits=3)} ×)"
                    )
            if agree:
                yield True, f"CFTP over {other}, {word}: as in the paper for {_listed(agree)}."
            if differ:
                yield False, f"CFTP over {other}, {word}: the other way round than in the paper for {_listed(differ)}."


def _libraries(document: Document) -> Iterator[tuple[bool, str]]:
    """Table 3: the own products are faster than each library's."""
    rows = _grid([cell for cell in document.cells if cell.unit == "s"])
    for library in ("OpenBLAS", "nativeBLAS", "oneDNN"):
        found = {
            row: values[library] / min(own)
            for row, values in rows.items()
            if library in values and (own := _own(values))
        }
        faster = [f"{row} {rounded(ratio, digits=3)} ×" for row, ratio in found.items() if ratio > 1]
        slower = [f"{row} {rounded(ratio, digits=3)} ×" for row, ratio in found.items() if ratio <= 1]
        if faster:
            yield True, f"A step with our products is faster than with {library}, as in the paper: {_listed(faster)}."
        if slower:
            yield False, f"A step with our products is not faster than with {library}: {_listed(slower)}."


def _own(values: Mapping[str, float]) -> list[float]:
    return [values[name] for name in ("own GEMM", "tuned") if name in values]


def _modules(document: Document) -> Iterator[tuple[bool, str]]:
    """Table 4: products of each module are faster than each library's."""
    means = [cell for cell in document.cells if cell.value is not None and "mean" in cell.quantity]
    for library in dict.fromkeys(cell.column for cell in means):
        own = [cell for cell in means if cell.column == library]
        faster = [f"{cell.row} {rounded(cell.value or 0, digits=3)} ×" for cell in own if (cell.value or 0) > 1]
        slower = [f"{cell.row} {rounded(cell.value or 0, digits=3)} ×" for cell in own if (cell.value or 0) <= 1]
        if faster:
            yield True, f"Our products are faster than those of {library}: {_listed(faster)}."
        if slower:
            yield False, f"Our products are not faster than those of {library}: {_listed(slower)}."


def _losses(document: Document) -> Iterator[tuple[bool, str]]:
    """Figure 7: the losses of two platforms are alike."""
    platforms = platforms_of(document)
    noise = noise_of(platforms[0]) if platforms else None
    if noise is None:
        return
    limit = 2 * float(np.nanmax(noise))  # two seeds, one each side of their mean
    for platform in platforms[1:]:
        found = deviation_of(platform, platforms[0])
        if found is None or not np.isfinite(found).any():
            continue
        most = float(np.nanmax(np.abs(found)))
        word = "within" if most <= limit else "beyond"
        yield (
            most <= limit,
            f"The loss of {platform.name} differs from that of {platforms[0].name} by at most {rounded(most, digits=2)}, {word} "
            f"what two seeds differ by ({rounded(limit, digits=2)}).",
        )


def _steps(document: Document) -> Iterator[tuple[bool, str]]:
    """Figure 9: every step adds, and all together are far above the baseline."""
    own = [cell for cell in document.cells if cell.unit == "x"]
    for column in dict.fromkeys(cell.column for cell in own):
        values = [(cell.row, cell.value) for cell in own if cell.column == column and cell.value is not None]
        lost = [
            f"{after} ({rounded(value / before, digits=3)} ×)"
            for (_, before), (after, value) in pairwise(values)
            if value < before * (1 - SAME)
        ]
        if len(values) < 2:
            continue
        total = rounded(values[-1][1], digits=3)
        if lost:
            yield (
                False,
                f"On {column} these steps make it slower than the step before, where the paper gains: {_listed(lost)}.",
            )
        else:
            yield True, f"On {column} no step makes it slower, as in the paper."
        yield (
            values[-1][1] > 1 + SAME,
            f"All steps together are {total} × the baseline on {column}; the paper has 8.2 ×.",
        )


def _scaling(document: Document) -> Iterator[tuple[bool, str]]:
    """Figure 10: weak scaling stays near one."""
    if document.target != "fig10":
        return
    for one in document.series:
        points = [(x, y) for x, y in zip(one.x, one.y, strict=True) if y is not None]
        if one.kind == "measured" and len(points) > 1:
            x, y = points[-1]
            holds = y >= AT_EFFICIENCY - CLOSE
            yield holds, f"{one.label}: {100 * y:.1f} % at {x:g} {one.x_label}; the paper has 90.6 % at 256 nodes."
        elif (
            one.kind == "simulated" and "XL/2" in one.label and "batch" not in one.label and dict(points).get(AT_NODES)
        ):
            y = dict(points)[AT_NODES]
            holds = y >= AT_EFFICIENCY - CLOSE
            yield holds, f"{one.label}, simulated: {100 * y:.1f} % at 256 nodes; the paper has 90.6 %."


def _fid(document: Document) -> Iterator[tuple[bool, str]]:
    """Table 1: only where scores stand beside the paper's."""
    for cell in document.cells:
        if cell.ratio is not None:
            holds = cell.ratio <= 1 + CLOSE
            yield (
                holds,
                f"{cell.row}, {cell.column}: FID {rounded(cell.value or 0, digits=4)}; the paper has {cell.published}.",
            )


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _sign(ratio: float) -> int:
    return 0 if abs(ratio - 1) <= SAME else 1 if ratio > 1 else -1


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


CLAIMS: Mapping[str, Callable[[Document], Any]] = {
    "table1": _fid,
    "table2": _strategies,
    "table3": _libraries,
    "table4": _modules,
    "fig7": _losses,
    "fig9": _steps,
    "fig10": _scaling,
}
