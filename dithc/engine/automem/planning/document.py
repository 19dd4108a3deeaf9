"""A plan as a document: JSON conversion, and a terminal table in which equal units share a line."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Self

from dithc.core.logging import user_error
from dithc.core.units import format_bytes
from dithc.engine.automem.planning.decision import MemoryLevel, Phase, Place, UnitDecision

SCHEMA = 1
HEAD = ("unit", "weights", "gradients", "saved kept", "offloaded", "recompute", "ahead")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Decisions by unit, state placement by name, and the predicted timeline of a step."""

    units: Mapping[str, UnitDecision]  # in forward order
    state: Mapping[str, Place]
    phases: tuple[Phase, ...]
    fits: bool  # whether fast and slow memory are large enough
    reasons: tuple[str, ...]  # reasons of the decisions; if the plan does not fit: phase, missing bytes, fix
    fast: MemoryLevel
    slow: MemoryLevel
    in_place_bytes: int = 0  # weight bytes read from slow memory per step, without a copy

    @property
    def everything_resident(self) -> bool:
        places = {
            *self.state.values(),
            *(place for unit in self.units.values() for place in (unit.weights, unit.gradients)),
        }
        return places <= {"fast"} and not any(unit.moves_tensors for unit in self.units.values())

    @property
    def stall_seconds(self) -> float:
        """Predicted waiting per step."""
        return sum(phase.stall_seconds for phase in self.phases)

    @property
    def step_seconds(self) -> float:
        """Predicted seconds per step: computing (including recomputation) and waiting."""
        return sum(phase.seconds + phase.stall_seconds for phase in self.phases)

    @property
    def peak_fast_bytes(self) -> int:
        """Peak use of fast memory in the predicted step."""
        return max((phase.fast_bytes for phase in self.phases), default=0)

    def describe(self) -> str:
        """Return a table: a line per unit (or run of equal units), the state, totals and reasons."""
        rows = [HEAD, *_rows(self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        if self.state and self.phases:
            slow, first = sum(place == "slow" for place in self.state.values()), self.phases[0]
            parts = ((first.fast_parts, self.fast), (first.slow_parts, self.slow))
            sizes = ", ".join(f"{format_bytes(part['state'])} in {level.name}" for part, level in parts)
            lines.append(f"state: {sizes} ({slow} of {len(self.state)} pieces)")
        return "\n".join([*lines, *_totals(self), *self.reasons])

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Parse the output of `to_dict`; UserError for another schema, or missing or unknown fields."""
        fields = {**data}
        try:
            if fields.pop("schema", None) != SCHEMA:
                raise KeyError(f"schema {data.get('schema')}")
            units = fields.pop("units").items()
            return cls(
                units={name: UnitDecision(**{**unit, "saved": tuple(unit["saved"])}) for name, unit in units},
                phases=tuple(Phase(**phase) for phase in fields.pop("phases")),
                reasons=tuple(fields.pop("reasons")),
                fast=MemoryLevel(**fields.pop("fast")),
                slow=MemoryLevel(**fields.pop("slow")),
                **fields,
            )
        except (KeyError, TypeError, AttributeError) as error:
            expected, fix = f"schema {SCHEMA} with its fields", "recreate it by AutoMem with this version"
            raise user_error("memory plan", got=error, expected=expected, fix=fix) from error


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    for cells, run in groupby(plan.units, key=lambda name: _cells(plan.units[name])):
        names = list(run)
        yield (names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)}, each)", *cells)


def _cells(decision: UnitDecision) -> tuple[str, ...]:
    """Format a unit's cells except the name; distances as forward/backward slots."""
    has_weights = decision.weight_bytes > 0
    return (
        f"{decision.weights} {format_bytes(decision.weight_bytes)}" if has_weights else "-",
        decision.gradients if has_weights else "-",
        format_bytes(decision.kept_bytes) if decision.kept_bytes else "-",
        format_bytes(decision.offloaded_bytes) if decision.offloaded_bytes else "-",
        "yes" if decision.recompute else "-",
        f"{decision.forward_ahead}/{decision.backward_ahead}",
    )


def _totals(plan: Plan) -> list[str]:
    loaded = sum(phase.load_bytes for phase in plan.phases)
    offloaded = sum(phase.offload_bytes for phase in plan.phases)
    in_place = f", {format_bytes(plan.in_place_bytes)} read in place" if plan.in_place_bytes else ""
    seconds = plan.step_seconds
    share = plan.stall_seconds / seconds if seconds else 0.0
    budget = "no budget" if plan.fast.budget_bytes is None else f"budget {format_bytes(plan.fast.budget_bytes)}"
    peak_slow = max((phase.slow_bytes for phase in plan.phases), default=0)
    return [
        f"moved per step: {format_bytes(loaded)} loaded, {format_bytes(offloaded)} offloaded{in_place}",
        f"predicted: {seconds:.3f} s per step, including {plan.stall_seconds:.3f} s ({share:.1%}) of waiting",
        f"peak: {plan.fast.name} {format_bytes(plan.peak_fast_bytes)} ({budget}), {plan.slow.name} {format_bytes(peak_slow)}",
    ]
