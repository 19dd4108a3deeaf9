"""What benches measured of the engine, each as a part of the page; what was not run is only named."""

from dataclasses import dataclass, field
from typing import Any

from dithc.report.engine import (
    automem_table,
    published,
    sampling_rows,
    scaling_curves,
    step_table,
    stepwise_stages,
    strategy_table,
)
from dithc.report.facts import Facts
from dithc.report.page.tables import Table, table

SCALING = {
    "weak": "Weak scaling: the images of a rank stay",
    "strong": "Strong scaling: the images of all ranks together stay",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A benchmark on the page.

    Attributes:
        name: its anchor.
        figure: name and description of its figure; None without one.
        folded: tables that are collapsed.
    """

    name: str
    title: str
    note: str = ""
    figure: tuple[str, str] | None = None
    tables: list[Table] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)
    conditions: dict[str, Any] = field(default_factory=dict)


def engine_parts(facts: Facts, reference: published.Reference) -> tuple[list[Part], list[str]]:
    """Return the measured parts, and the titles of the others."""
    every = [
        _step(facts),
        _strategies(facts, reference),
        *(_scaling(facts, mode) for mode in SCALING),
        _stepwise(facts),
        _sampling(facts),
        _memory(facts),
    ]
    return [part for part in every if part.tables or part.folded], [
        part.title for part in every if not (part.tables or part.folded)
    ]


def _step(facts: Facts) -> Part:
    found = step_table.bench_parts(facts.bench)
    rows = [list(row.values()) for row in found["rows"]]
    tables = [table("A training step of dithc and of others", list(found["rows"][0]), rows, texts=2)] if rows else []
    return Part(name="step", title="Step bench", tables=tables, conditions=found["conditions"])


def _strategies(facts: Facts, reference: published.Reference) -> Part:
    printed = reference.tables.get("table2")
    found = strategy_table.strategy_parts(facts.strategies, printed)
    title = "Strategies: one node, seconds a step, peak memory, bytes between ranks"
    if not found["rows"]:
        return Part(name="strategies", title=title)
    tables = [table("Time and memory by strategy", found["head"], found["rows"], texts=2)]
    tables += (
        [table("CFTP against the others", found["ratio_head"], found["ratios"], texts=3)] if found["ratios"] else []
    )
    note = (
        "Medians and their deviation; – is out of memory. Memory is the sum over the ranks of the node, shared pages counted "
        "once; sent is what all ranks send each other in a step. The sizes of the paper's table 2 are those of its machine: what "
        "compares is the ratio of two strategies."
    )
    return Part(
        name="strategies", title=title, note=note, tables=tables, folded=[as_printed(printed)] if printed else [],
        conditions=found["conditions"],
    )  # fmt: skip


def as_printed(printed: Any) -> Table:
    """Return a table of the paper."""
    rows = [["–" if value is None else str(value) for value in row] for row in printed.rows]
    return table(printed.title, list(printed.columns), rows)


def _scaling(facts: Facts, mode: str) -> Part:
    found = scaling_curves.scaling_parts(facts.scaling)
    rows = found["rows"][mode]
    note = (
        "Colour: model. Line: whether a curve was measured here, is printed in the paper or in its authors' logs, or was "
        "simulated; each is named so. Efficiency is against the fewest ranks of the same curve. The paper's ranks are dies, four "
        "a node, on its machine."
    )
    points = (
        "Seconds are medians and their deviation. Exposed: how long a step waited for gradients after its backward pass. TFLOP/s "
        "of all ranks, with attention; linear: linear layers alone, as the paper counts. Together over alone: the step over the "
        "same one with nothing exchanged. Same training: losses and gradient norms equal those on the fewest ranks."
    )
    shows = (
        f"{mode}_scaling",
        f"{mode.capitalize()} scaling: efficiency, and seconds of a step, by number of ranks; all points are in the table.",
    )
    folded = [table(f"All points of {mode} scaling", found["head"], rows, texts=2, note=points)] if rows else []
    return Part(
        name=f"{mode}-scaling",
        title=SCALING[mode],
        note=note if rows else "",
        figure=shows if rows else None,
        folded=folded,
    )


def _stepwise(facts: Facts) -> Part:
    found = stepwise_stages.stepwise_parts(facts.stepwise, facts.stepwise_paper)
    title = "Step by step: what each part of dithc adds"
    if not found["rows"]:
        return Part(name="stepwise", title=title)
    note = (
        "One program, each stage with all that the stages before it have; medians and their deviation of runs of the same round. "
        "The paper's numbers (figure 9) are those of its machine, where PyTorch's matrix products are far from what the "
        "processor can do: what compares is what each step adds."
    )
    shows = (
        "stepwise",
        "Speed-up over the baseline by stage, measured here and published; the numbers are in the table.",
    )
    return Part(
        name="stepwise", title=title, note=note, figure=shows, tables=[table("Speed-up by stage", found["head"], found["rows"])],
        conditions=found["conditions"],
    )  # fmt: skip


def _sampling(facts: Facts) -> Part:
    found = sampling_rows.sampling_parts(facts.sampling)
    title = "Sampling: one image by one rank and by several"
    if not found["tables"]:
        return Part(name="sampling", title=title)
    note = (
        "Seconds are of one guided step, or of one call of the network where it is not guided. Every output, on every rank, was "
        "compared with that of one rank. Each rank alone, at once, exchanges nothing: no cut can be faster than that here. "
        "Sent is what all ranks send in a step; keys and values in shared memory are written in place, and are not sent. "
        "A cache gives another image: how far it is from that of one rank says little here, for weights are random; what part of "
        "the blocks was run is what its time follows. One that looks at numbers, such as first block, seldom finds in random "
        "weights what it may use again: what is seen is its cost. "
        "Decoded by rows an image is that of one rank but for rounding; rows that are decoded apart, for comparison, are not. "
        "Peaks are of processes that did nothing before, above what these held."
    )
    shows = (
        "sampling",
        "Speed-ups over one rank; below them the image of each way, before decoding, and its difference from that of one rank; "
        "then likewise images decoded by rows, and by rows apart.",
    )
    tables = [
        table(part["title"], part["head"], part["rows"])
        for part in (*found["images"], *found["decoding"], *found["tables"])
    ]
    return Part(
        name="sampling", title=title, note=note, figure=shows, tables=tables,
        folded=[table("What the ways are", ["Way", "What it does"], found["ways"], texts=2)], conditions=found["conditions"],
    )  # fmt: skip


def _memory(facts: Facts) -> Part:
    found = automem_table.automem_parts(facts.automem)
    tables = [table(part["title"], part["head"], part["rows"], texts=len(part["head"])) for part in found["tables"]]
    shows = ("memory", "Both tiers of memory over one step: what is held, what moves, what waits, as AutoMem plans it.")
    return Part(
        name="memory",
        title="Memory: tiers, budgets, the pool",
        tables=tables,
        figure=shows if tables else None,
        conditions=found["conditions"],
    )
