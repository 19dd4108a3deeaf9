"""Text of a plan for the terminal."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dithc.core.units import GIB
from dithc.engine.cost import estimates, plans, records

CATEGORIES = ("weights", "gradients", "optimizer", "averages", "activations", "snapshot", "process")
SHOWN, SHOWN_REJECTED = 10, 6


def format_plan(table: estimates.PlanTable, record: Mapping[str, Any]) -> str:
    """Format the choice, its parts, the next nine plans, rejected plans, limits, and the sources of the numbers."""
    best = table.best
    if best is None:
        return "\n".join(["no plan fits", *_rejected(table), *_sources(record)])
    return "\n".join(
        [*_choice(table, best, record), "", *_plans(table, best), *_rejected(table), "", *_sources(record)]
    )


def _choice(table: estimates.PlanTable, best: estimates.PlanEstimate, record: Mapping[str, Any]) -> Iterator[str]:
    task, whole = table.task, record["whole"]
    low, high = best.interval
    yield f"{task.name}: {task.run.model.preset}, {task.run.global_batch_size} images per step, {best.plan}"
    yield (
        f"  step     {best.seconds:.3g} s ({low:.3g} to {high:.3g}, {best.source}): computing {best.computing:.3g}, exposed "
        f"exchange {best.exposed:.3g}, stall {best.stall:.2g}, saving {best.saving:.2g} s"
    )
    parts = ", ".join(f"{name} {best.ranks_per_node * getattr(best.memory, name) / GIB:.2f}" for name in CATEGORIES)
    parts += f", launcher {best.launcher_bytes / GIB:.2f}"
    if best.spilled_bytes:
        parts += f", in files {-best.ranks_per_node * best.spilled_bytes / GIB:.2f}"
    yield f"  memory   {best.node_bytes / GIB:.2f} GiB per node, {best.headroom / GIB:.2f} GiB free: {parts}"
    yield (
        f"  run      {task.run.steps} steps: {duration(whole['seconds'])}, {whole['node_hours']:.3g} node-hours; "
        f"{whole['written_checkpoints']:g} checkpoints, {whole['kept_checkpoints']:g} kept, {whole['disk_bytes'] / GIB:.2f} GiB"
    )
    largest, ranks = record["largest_micro_batch"], plans.data_ranks(best.plan, table.facts)
    yield (
        f"  limits   {record['smallest_nodes']} node(s) are sufficient; a micro-batch of up to {largest} images fits "
        f"({largest * ranks} per step without accumulation)"
    )


def _plans(table: estimates.PlanTable, best: estimates.PlanEstimate) -> Iterator[str]:
    shown = estimates.different(table.estimates, SHOWN)
    width = max(len(str(one.plan)) for one in shown)
    yield f"  {'plan':{width}}  s per step  GiB per node  difference"
    for one in shown:
        note = "chosen" if one is best else one.limit(best)
        yield f"  {one.plan!s:{width}}  {one.seconds:10.3g}  {one.node_bytes / GIB:12.2f}  {note}"


def _rejected(table: estimates.PlanTable) -> Iterator[str]:
    groups: dict[str, list[plans.TrainingPlan]] = {}
    for plan, reason in table.rejected:
        groups.setdefault(re.sub(r"[\d.]+", "N", reason), []).append(plan)
    reasons = {id(plan): reason for plan, reason in table.rejected}
    if groups:
        yield f"  rejected: {len(table.rejected)}"
    for found in list(groups.values())[:SHOWN_REJECTED]:
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"    {found[0]}: {reasons[id(found[0])]}{more}"


def _sources(record: Mapping[str, Any]) -> Iterator[str]:
    for name in ("measured", "described", "assumed", "skipped"):
        if lines := record["sources"][name]:
            yield f"  {name}: " + "; ".join(lines)
    count, seconds, memory = records.earlier_errors()
    text = f"{count} run(s), median error {seconds:.1%} of seconds, {memory:.1%} of memory" if count else "none"
    yield f"  earlier plans on this machine: {text}"


def duration(seconds: float) -> str:
    """Format seconds in the largest fitting unit."""
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
