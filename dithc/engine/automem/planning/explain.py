"""Reasons of a plan as sentences: decisions, costs, and missing memory."""

from collections.abc import Mapping, Sequence

from dithc.core.units import format_bytes
from dithc.engine.automem.planning.decision import MemoryLevel, Phase, UnitDecision


def reasons(
    decisions: Mapping[str, UnitDecision],
    phases: Sequence[Phase],
    resident: Sequence[Phase],
    *,
    fast: MemoryLevel,
    slow: MemoryLevel,
    fits: bool,
) -> tuple[str, ...]:
    """Return sentences about a plan; `resident` is the timeline with all tensors in fast memory."""
    peak = max(resident, key=lambda phase: phase.fast_bytes)
    budget = "no budget" if fast.budget_bytes is None else f"budget {format_bytes(fast.budget_bytes)}"
    if fits and phases == resident:
        return (
            f"everything resident: {format_bytes(peak.fast_bytes)} in {fast.name} at most ({_phase_name(peak)}), {budget}",
        )
    share = f" ({(fast.budget_bytes or 0) / peak.fast_bytes:.0%})" if peak.fast_bytes else ""
    lines = [
        f"{fast.name} has {budget}{share} of the {format_bytes(peak.fast_bytes)} required for everything ({_phase_name(peak)})"
    ]
    recomputed = [name for name, decision in decisions.items() if decision.recompute]
    if recomputed:
        lines.append(
            f"forward again in backward: {len(recomputed)} units ({recomputed[0]} to {recomputed[-1]}), cheaper than their copies"
        )
    if not fits:
        lines += _missing(phases, fast, slow, resident)
    return tuple(lines)


def _missing(phases: Sequence[Phase], fast: MemoryLevel, slow: MemoryLevel, resident: Sequence[Phase]) -> list[str]:
    lines = []
    for level, needs in (
        (fast, [phase.fast_bytes for phase in phases]),
        (slow, [phase.slow_bytes for phase in phases]),
    ):
        peak = max(needs)
        if level.budget_bytes is None or peak <= level.budget_bytes:
            continue
        missing = format_bytes(peak - level.budget_bytes)
        name = _phase_name(phases[needs.index(peak)])
        fix = f"fix: at least {format_bytes(peak)} of {level.name}, or a smaller batch"
        if level is slow:
            recomputed = any(phase.seconds > other.seconds for phase, other in zip(phases, resident, strict=True))
            fix += "" if recomputed else ", or allow_recompute, which keeps less"
        lines.append(f"does not fit: {level.name} is short of {missing} in {name}; {fix}")
    return lines


def _phase_name(phase: Phase) -> str:
    return phase.kind if phase.kind == "update" else f"{phase.kind} of {phase.name}"
