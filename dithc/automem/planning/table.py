"""A plan as a table for a terminal; units that are treated alike share a line."""

from collections.abc import Iterator
from itertools import groupby

from dithc.automem.planning.decision import Decision, Plan
from dithc.automem.planning.reasons import size

HEAD = ("unit", "weights", "gradients", "saved kept", "offloaded", "recompute", "ahead")


def table(plan: Plan) -> str:
    """One line a unit (or run of like units), a line for state, then totals and reasons."""
    rows = [HEAD, *_rows(plan)]
    first = plan.phases[0] if plan.phases else None
    if plan.state and first:
        slow = sum(place == "slow" for place in plan.state.values())
        held = f"{size(first.fast_parts['state'])} in {plan.fast.name}, {size(first.slow_parts['state'])} in {plan.slow.name}"
        rows.append((f"state: {held} ({slow} of {len(plan.state)} pieces)",))
    widths = [max(len(row[column]) for row in rows if len(row) > 1) for column in range(len(HEAD))]
    lines = [
        row[0] if len(row) == 1 else "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, *_totals(plan), *plan.reasons])


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    for cells, run in groupby(
        ((name, _cells(decision)) for name, decision in plan.units.items()), key=lambda row: row[1]
    ):
        names = [name for name, _ in run]
        yield (names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)}, each)", *cells)


def _cells(decision: Decision) -> tuple[str, ...]:
    """All but the name; the distances as forward/backward turns."""
    has_weights = decision.weight_bytes > 0
    return (
        f"{decision.weights} {size(decision.weight_bytes)}" if has_weights else "-",
        decision.gradients if has_weights else "-",
        size(decision.kept_bytes) if decision.kept_bytes else "-",
        size(decision.offloaded_bytes) if decision.offloaded_bytes else "-",
        "yes" if decision.recompute else "-",
        f"{decision.forward_ahead}/{decision.backward_ahead}",
    )


def _totals(plan: Plan) -> list[str]:
    loaded = sum(phase.load_bytes for phase in plan.phases)
    offloaded = sum(phase.offload_bytes for phase in plan.phases)
    in_place = f", {size(plan.in_place_bytes)} read in place" if plan.in_place_bytes else ""
    seconds = plan.step_seconds
    share = plan.stall_seconds / seconds if seconds else 0.0
    budget = "no budget" if plan.fast.budget_bytes is None else f"budget {size(plan.fast.budget_bytes)}"
    peak_slow = max((phase.slow_bytes for phase in plan.phases), default=0)
    return [
        f"moved in a step: {size(loaded)} loaded, {size(offloaded)} offloaded{in_place}",
        f"predicted: {seconds:.3f} s a step, of which {plan.stall_seconds:.3f} s ({share:.1%}) are waiting",
        f"peak: {plan.fast.name} {size(plan.peak_fast_bytes)} ({budget}), {plan.slow.name} {size(peak_slow)}",
    ]
