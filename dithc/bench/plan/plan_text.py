"""Text of a plan for the terminal."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dithc.core.units import GIB
from dithc.engine.cost import estimates, plans, records

TIME_OVER = "the time for rehearsals is over"  # reason of a skipped arrangement
CATEGORIES = ("weights", "gradients", "optimizer", "averages", "activations", "snapshot", "process")
SHOWN, SHOWN_REJECTED = 10, 6
SOURCES = {
    "timed": "this plan was run",
    "measured": "from measured micro-batches",
    "derived": "from measurements of similar plans",
    "described": "from the description",
}
TERMS = {
    "cftp": "each rank has all weights and the cores of a die",
    "dp": "each rank has all weights and the cores of a cluster",
    "dp+tp": "the ranks of a die share the layers",
    "zero1": "ranks share the optimizer state",
    "zero2": "ranks share optimizer state and gradients",
    "node": "the ranks of a node share the optimizer state",
    "iallreduce": "sums by MPI alone",
    "bf16 sums": "gradients are rounded to bf16 and sent",
    "measured shares": "faster ranks get more images",
    "recompute": "the backward pass computes activations again",
}


def format_plan(table: estimates.PlanTable, record: Mapping[str, Any]) -> str:
    """Format the choice, its parts, the next nine plans, rejected plans, limits, and the sources of the numbers."""
    best = table.best
    if best is None:
        fix = "  fix: more memory, or another number of nodes or global_batch_size, as the reasons require"
        return "\n".join(["no plan fits", *_rejected(table), fix, *_sources(record)])
    return "\n".join(
        [*_choice(table, best, record), "", *_plans(table, best), *_rejected(table), "", *_sources(record)]
    )


def _choice(table: estimates.PlanTable, best: estimates.PlanEstimate, record: Mapping[str, Any]) -> Iterator[str]:
    task, whole = table.task, record["whole"]
    low, high = best.interval
    millions = task.run.model.parameters / 1e6
    yield f"{task.name}: {task.run.model.preset}, {millions:.3g} M parameters, {task.run.global_batch_size} images per step"
    yield f"  choice   {best.plan}"
    if late := sum(TIME_OVER in line for line in record["sources"]["skipped"]):
        yield f"  warning  {late} kind(s) of plans, perhaps faster ones, were not measured, see `skipped`: raise --seconds"
    yield (
        f"  step     {best.seconds:.3g} s, {low:.3g} to {high:.3g} s expected ({SOURCES[best.source]}): computing "
        f"{best.computing:.3g}, exposed exchange {best.exposed:.3g}, file tier {best.stall:.2g}, saving {best.saving:.2g} s"
    )
    parts = ", ".join(f"{name} {best.ranks_per_node * getattr(best.memory, name) / GIB:.2f}" for name in CATEGORIES)
    parts += f", launcher {best.launcher_bytes / GIB:.2f}"
    if best.spilled_bytes:
        parts += f", in files {-best.ranks_per_node * best.spilled_bytes / GIB:.2f}"
    yield f"  memory   {best.node_bytes / GIB:.2f} GiB per node, {best.headroom / GIB:.2f} GiB remain free: {parts}"
    steps = task.run.steps
    yield (
        f"  run      {steps} steps: {duration(whole['seconds'])} ({duration(steps * low)} to {duration(steps * high)}) "
        f"without queue, start and preparation, {whole['node_hours']:.3g} node-hours; {whole['written_checkpoints']:g} "
        f"checkpoints, {whole['kept_checkpoints']:g} kept, {whole['disk_bytes'] / GIB:.2f} GiB"
    )
    nodes, ranks = record["smallest_nodes"], plans.data_ranks(best.plan, table.facts)
    if nodes is not None and nodes < best.plan.nodes:
        yield f"  fewer    the memory of {nodes} node(s) is sufficient, with {record['smallest_seconds']:.3g} s per step"
    largest = float(f"{record['largest_micro_batch']:.2g}")
    yield f"  larger   micro-batches of about {largest:,.0f} images fit, {largest * ranks:,.0f} per step without accumulation"


def _plans(table: estimates.PlanTable, best: estimates.PlanEstimate) -> Iterator[str]:
    equal = [one for one in table.estimates if one is not best and one.is_like(best)]
    shown = estimates.different([one for one in table.estimates if one not in equal], SHOWN)
    width = max(len(str(one.plan)) for one in shown)
    yield f"  {'plan':{width}}  s per step  GiB per node  difference"
    for one in shown:
        note = "chosen" if one is best else one.limit(best)
        yield f"  {one.plan!s:{width}}  {one.seconds:10.3g}  {one.node_bytes / GIB:12.2f}  {note}"
    if equal:
        known = str(best.plan).split(", ")
        changes = [", ".join(part for part in str(one.plan).split(", ") if part not in known) for one in equal]
        more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        yield f"  as fast, with as much memory: {'; '.join(change or 'without sharding' for change in changes[:SHOWN])}{more}"
    text = " ".join(f"{one.plan}," for one in (*shown, *equal))
    yield "  " + "; ".join(f"{term}: {meaning}" for term, meaning in TERMS.items() if f" {term}," in text)


def _rejected(table: estimates.PlanTable) -> Iterator[str]:
    groups: dict[str, list[plans.TrainingPlan]] = {}
    for plan, reason in table.rejected:
        groups.setdefault(re.sub(r"[\d.]+", "N", reason), []).append(plan)
    reasons = {id(plan): reason for plan, reason in table.rejected}
    for found in list(groups.values())[:SHOWN_REJECTED]:
        yield f"  rejected {len(found)} plan(s): {reasons[id(found[0])]} ({found[0]})"


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
