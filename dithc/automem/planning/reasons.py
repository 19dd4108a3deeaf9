"""Reasons of a plan as sentences: decisions, costs, and missing memory."""

from collections.abc import Mapping, Sequence

from dithc.automem.planning.decision import Decision, Level, Phase, Place
from dithc.automem.trace import Trace

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def reasons(
    trace: Trace,
    decisions: Mapping[str, Decision],
    state: Mapping[str, Place],
    phases: Sequence[Phase],
    everything: Sequence[Phase],
    *,
    fast: Level,
    slow: Level,
    fits: bool,
) -> tuple[str, ...]:
    """Return sentences about a plan; `everything` is the timeline with all tensors in fast memory."""
    worst = max(everything, key=lambda phase: phase.fast_bytes)
    budget = "no budget" if fast.budget_bytes is None else f"budget {size(fast.budget_bytes)}"
    if fits and phases == everything:
        return (f"everything resident: {size(worst.fast_bytes)} in {fast.name} at most ({_turn(worst)}), {budget}",)
    share = f" ({(fast.budget_bytes or 0) / worst.fast_bytes:.0%})" if worst.fast_bytes else ""
    lines = [
        f"{fast.name} has {budget}{share} of the {size(worst.fast_bytes)} required for everything ({_turn(worst)})"
    ]
    moved = _moved(trace, decisions, state)
    if moved:
        lines.append(f"in {slow.name}: {'; '.join(moved)}")
    again = [name for name, decision in decisions.items() if decision.recompute]
    if again:
        lines.append(
            f"forward again in backward: {len(again)} units ({again[0]} to {again[-1]}), cheaper than their copies"
        )
    if not fits:
        lines += _missing(phases, fast, slow, everything)
    return tuple(lines)


def size(num_bytes: int) -> str:
    """Format bytes with a binary unit."""
    for unit, name in UNITS:
        if num_bytes >= unit:
            return f"{num_bytes / unit:.2f} {name}"
    return f"{num_bytes} B"


def _moved(trace: Trace, decisions: Mapping[str, Decision], state: Mapping[str, Place]) -> list[str]:
    """Describe the content of slow memory by kind."""
    slow_state = [item.bytes for item in trace.state if state[item.name] == "slow"]
    parts = [f"{len(slow_state)} of {len(trace.state)} pieces of state ({size(sum(slow_state))})"] if slow_state else []
    gradients = [unit for unit in trace.units if decisions[unit.name].gradients == "slow"]
    if gradients:
        parts.append(f"gradients of {len(gradients)} units")
    offloaded = [decision for decision in decisions.values() if decision.offloaded_bytes]
    if offloaded:
        num_bytes = sum(decision.offloaded_bytes for decision in offloaded)
        parts.append(f"saved tensors of {len(offloaded)} units temporarily ({size(num_bytes)})")
    for kind, how in (("copied", "copied before use"), ("in place", "used in place")):
        units = [decision for decision in decisions.values() if decision.weights == kind]
        if units:
            num_bytes = sum(decision.weight_bytes for decision in units)
            parts.append(f"weights of {len(units)} units, {how} ({size(num_bytes)})")
    return parts


def _missing(phases: Sequence[Phase], fast: Level, slow: Level, everything: Sequence[Phase]) -> list[str]:
    """Describe the missing memory and the fix."""
    lines = []
    for level, needs in (
        (fast, [phase.fast_bytes for phase in phases]),
        (slow, [phase.slow_bytes for phase in phases]),
    ):
        most = max(needs)
        if level.budget_bytes is None or most <= level.budget_bytes:
            continue
        missing = size(most - level.budget_bytes)
        where = _turn(phases[needs.index(most)])
        fix = f"fix: at least {size(most)} of {level.name}, or a smaller batch"
        if level is slow:
            recomputed = any(phase.seconds > other.seconds for phase, other in zip(phases, everything, strict=True))
            fix += "" if recomputed else ", or allow_recompute, which keeps less"
        lines.append(f"does not fit: {level.name} is short of {missing} in {where}; {fix}")
    return lines


def _turn(phase: Phase) -> str:
    return phase.kind if phase.kind == "update" else f"{phase.kind} of {phase.name}"
