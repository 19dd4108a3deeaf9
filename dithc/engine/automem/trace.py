"""Trace of one training step: units in execution order, their weights, saved tensors, memory use and times.

The warm-up recorder writes it and the planner reads it. Every byte in fast memory counts exactly once:

- always: `Trace.outside_bytes`, and `state` and weights that live there;
- from the end of a unit's backward pass to the optimizer: gradients of its weights (`Weight.gradient_bytes`);
- from the end of the first saving unit's forward pass (its start for `is_input`) to the end of the last reading backward
  pass: a `SavedTensor` tensor;
- while a unit runs, at the peak: `forward_bytes` or `backward_bytes`, its allocations on top (temporaries, outputs, saved
  tensors, gradients of its weights), and `forward_carried_bytes` or `backward_carried_bytes`, other unsaved values between units.

Unit `i` of L (from 0) runs forward at slot i and backward at position L - 1 - i of the backward order, slot 2 L - 1 - i of the
step. The update is last.
"""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A parameter with its name in the model and its bytes."""

    name: str
    bytes: int
    gradient_bytes: int  # of its gradient between the backward pass and the optimizer; 0: frozen, or in `Trace.state`


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """A storage that autograd keeps for backward, listed at the unit that saved it first."""

    ordinal: int  # counted from 0 within the unit, in the order of saving
    bytes: int
    last_reader: int  # position in backward order of the last unit that reads it
    first_reader: int  # position in backward order of the first unit that reads it
    is_input: bool = False  # created by an earlier unit, or outside of all units


@dataclass(frozen=True, kw_only=True)
class StateItem:
    """State used by the update only: a moment, an average, a gradient buffer."""

    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A run of a module; a repeated call of a module is a further unit, `name#2`."""

    name: str
    weights: tuple[Weight, ...]  # without weights of an earlier unit
    saved: tuple[SavedTensor, ...]
    forward_seconds: float
    backward_seconds: float
    forward_bytes: int
    backward_bytes: int
    forward_carried_bytes: int = 0
    backward_carried_bytes: int = 0

    @property
    def weight_bytes(self) -> int:
        return sum(weight.bytes for weight in self.weights)

    @property
    def gradient_bytes(self) -> int:
        return sum(weight.gradient_bytes for weight in self.weights)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One training step: units in forward order, and memory outside of units."""

    units: tuple[Unit, ...]
    outside_bytes: int  # in use in fast memory when the step starts, except weights of units and state
    state: tuple[StateItem, ...] = ()
    update_seconds: float = 0.0
    gradients_persist: bool = False  # gradients exist when the step starts: micro-batches, or zeroed in place

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}
