"""Trace of one training step: units in execution order, their weights, saved tensors, memory use and times.

The warm-up recorder writes it and the planner reads it, also as JSON. Every byte in fast memory counts exactly once:

- always: `Trace.outside_bytes`, and `state` and weights that live there;
- from the end of a unit's backward pass to the optimizer: gradients of its weights (`Weight.gradient_bytes`);
- from the end of the first saving unit's forward pass (its start for `is_input`) to the end of the last reading backward
  pass: a `Saved` tensor;
- while a unit runs, at the peak: `forward_bytes` or `backward_bytes`, its allocations on top (temporaries, outputs, saved
  tensors, gradients of its weights), and `forward_carried_bytes` or `backward_carried_bytes`, other unsaved values between units.

Unit `i` of L (from 0) runs forward at turn i and backward at position L - 1 - i of the backward order, turn 2 L - 1 - i of the
step. The update is last.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dithc.automem.json_text import JsonText
from dithc.log import problem


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A parameter with its name in the model and its bytes."""

    name: str
    bytes: int
    gradient_bytes: int | None = None  # bytes of its gradient at rest; None: `bytes`; 0: frozen, or in `Trace.state`

    @property
    def resting_bytes(self) -> int:
        """Bytes of its gradient between the backward pass and the optimizer."""
        return self.bytes if self.gradient_bytes is None else self.gradient_bytes


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A storage that autograd keeps for backward, listed at the unit that saved it first."""

    ordinal: int  # counted from 0 within the unit, in the order of saving
    bytes: int
    last_reader: int  # position in backward order of the last unit that reads it
    first_reader: int | None = None  # position in backward order of the first unit that reads it; None: `last_reader`
    is_input: bool = False  # created by an earlier unit, or outside of all units

    @property
    def first(self) -> int:
        """Position in backward order of the first unit that reads it."""
        return self.last_reader if self.first_reader is None else self.first_reader


@dataclass(frozen=True, kw_only=True)
class StateItem:
    """State used by the update only: a moment, an average, a gradient buffer."""

    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A run of a module; a repeated call of a module is a further unit, `name#2`."""

    name: str
    weights: tuple[Weight, ...]
    saved: tuple[Saved, ...]
    forward_seconds: float
    backward_seconds: float
    forward_bytes: int
    backward_bytes: int
    forward_carried_bytes: int = 0
    backward_carried_bytes: int = 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of all its weights."""
        return sum(weight.bytes for weight in self.weights)


@dataclass(frozen=True, kw_only=True)
class Trace(JsonText):
    """One training step: units in forward order, and memory outside of units; validates names, ordinals, readers and signs."""

    units: tuple[Unit, ...]
    outside_bytes: int  # in use in fast memory when the step starts, except weights of units and state
    state: tuple[StateItem, ...] = ()
    update_seconds: float = 0.0
    gradients_persist: bool = False  # gradients exist when the step starts: micro-batches, or zeroed in place

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Self:
        units = tuple(_unit(unit) for unit in fields.pop("units"))
        state = tuple(StateItem(**item) for item in fields.pop("state"))
        return cls(units=units, state=state, **fields)

    @staticmethod
    def unreadable(got: str, expected: str) -> Exception:
        return problem("trace of a training step", got=got, expected=expected, fix="record it again with this version")


def _unit(data: Mapping[str, Any]) -> Unit:
    fields = dict(data)
    weights = tuple(Weight(**weight) for weight in fields.pop("weights"))
    saved = tuple(Saved(**saved) for saved in fields.pop("saved"))
    return Unit(weights=weights, saved=saved, **fields)


def _check(trace: Trace) -> None:
    """Raise UserError for an inconsistent trace."""
    names = [unit.name for unit in trace.units]
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong = [f"two units {name}" for name in twice]
    num_units = len(trace.units)
    for unit in trace.units:
        if [saved.ordinal for saved in unit.saved] != list(range(len(unit.saved))):
            wrong.append(f"{unit.name}: ordinals {[saved.ordinal for saved in unit.saved]}")
        for saved in unit.saved:
            if not 0 <= saved.first <= saved.last_reader < num_units:
                wrong.append(f"{unit.name}: saved {saved.ordinal} is read from {saved.first} to {saved.last_reader}")
        counts = [unit.forward_bytes, unit.backward_bytes, unit.forward_carried_bytes, unit.backward_carried_bytes]
        counts += [weight.bytes for weight in unit.weights] + [weight.resting_bytes for weight in unit.weights]
        counts += [saved.bytes for saved in unit.saved]
        if min([unit.forward_seconds, unit.backward_seconds, *counts]) < 0:
            wrong.append(f"{unit.name}: negative bytes or seconds")
    if min([trace.outside_bytes, trace.update_seconds, *(item.bytes for item in trace.state)]) < 0:
        wrong.append("negative bytes or seconds outside the units")
    if wrong:
        expected = "units of different names, ordinals 0, 1, ..., readers inside the step, nothing negative"
        raise problem("trace of a training step", got="; ".join(wrong[:5]), expected=expected, fix="record it again")
