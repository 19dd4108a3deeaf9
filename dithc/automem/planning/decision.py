"""What a plan says: one decision for each unit and each piece of state, and the timeline that it is expected to give.

Plain data, JSON both ways. A plan is advice: a tensor lies somewhere valid with any plan or with none.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from dithc.log import problem
from dithc.sealed import parse

SCHEMA = 1

Place = Literal["fast", "slow"]
Kind = Literal["outside", "state", "weights", "gradients", "saved", "working"]
KINDS: tuple[Kind, ...] = ("outside", "state", "weights", "gradients", "saved", "working")


@dataclass(frozen=True, kw_only=True)
class Level:
    """A level of memory, as far as a plan needs to know it."""

    name: str
    budget_bytes: int | None  # None: as much as is wanted
    copy_bytes_per_second: float  # of copies into it
    read_bytes_per_second: float | None = None  # of copies out of it; None: as of those into it

    @property
    def out_bytes_per_second(self) -> float:
        """Of copies out of it."""
        return self.copy_bytes_per_second if self.read_bytes_per_second is None else self.read_bytes_per_second


class Rates(NamedTuple):
    """Bytes a second that the copy streams between two levels carry, each on its own."""

    load: float  # into fast memory
    offload: float  # out of it


def rates_between(fast: Level, slow: Level) -> Rates:
    """A byte moves at the slower rate of the level that it leaves and the level that it comes to."""
    return Rates(
        load=min(slow.out_bytes_per_second, fast.copy_bytes_per_second),
        offload=min(fast.out_bytes_per_second, slow.copy_bytes_per_second),
    )


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to a unit.

    A unit's loads are copies of its weights (if `weights` is "copied"), before its forward and before its backward turn,
    and, before its backward turn, of the offloaded saved tensors that it is the first to read, its own or others'.
    They start when the unit `forward_ahead` or `backward_ahead` turns earlier starts, each from 0 (at its own turn) to
    the start of the step; turns of the forward and backward passes count alike. Only weights are loaded for backward
    while forward still runs: saved tensors wait for the first backward turn. Where that reaches back to the unit's own
    forward turn, the copy of the weights made for forward is kept, and not made again.

    The bytes of room are what must be free in fast memory before anything of that turn starts: what the unit takes
    while it runs, and the loads that start at its turn, its own and others'.
    """

    weights: Literal["fast", "copied", "in place"]
    gradients: Place  # where they rest from the unit's backward pass to the update
    saved: tuple[
        Literal["keep", "offload"], ...
    ]  # by ordinal; of a recomputed unit all its inputs alike, the rest "keep"
    recompute: bool = False  # saves its inputs only, and runs forward again before backward
    forward_ahead: int = 0
    backward_ahead: int = 0
    room_bytes: int = 0
    backward_room_bytes: int = 0
    weight_bytes: int = 0  # sizes of what was decided on, for tables and pictures
    kept_bytes: int = 0  # of saved tensors that stay
    offloaded_bytes: int = 0  # of saved tensors that leave


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One turn of the step as predicted: a unit's forward or backward pass, or the update.

    It takes `seconds` of computing and, before that, `stall_seconds` of waiting for copies or for room.
    """

    name: str
    kind: Literal["forward", "backward", "update"]
    seconds: float
    stall_seconds: float
    fast_bytes: int  # in use at the worst moment
    slow_bytes: int
    fast_parts: Mapping[Kind, int]  # `fast_bytes` by what it is
    slow_parts: Mapping[Kind, int]
    load_bytes: int  # of copies that start to run in this phase
    offload_bytes: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Decisions by unit, places of state by name, and the predicted timeline of one step."""

    units: Mapping[str, Decision]  # in forward order
    state: Mapping[str, Place]
    phases: tuple[Phase, ...]
    fits: bool  # whether fast and slow memory hold it all
    reasons: tuple[
        str, ...
    ]  # what was decided and why; where it does not fit: the phase, the missing bytes, the remedy
    fast: Level
    slow: Level
    in_place_bytes: int = 0  # of weights that operators read from slow memory in a step, without a copy

    @property
    def everything_resident(self) -> bool:
        """Whether nothing moves: all that the step touches stays in fast memory."""
        return all(place == "fast" for place in self.state.values()) and all(
            decision.weights == "fast"
            and decision.gradients == "fast"
            and not decision.recompute
            and "offload" not in decision.saved
            for decision in self.units.values()
        )

    @property
    def moved_bytes(self) -> int:
        """Bytes that cross between the levels in one step: copies, and weights that are read in place."""
        return self.in_place_bytes + sum(phase.load_bytes + phase.offload_bytes for phase in self.phases)

    @property
    def stall_seconds(self) -> float:
        """Predicted waiting of one step."""
        return sum(phase.stall_seconds for phase in self.phases)

    @property
    def step_seconds(self) -> float:
        """Predicted time of one step: computing (recomputation too) and waiting."""
        return sum(phase.seconds + phase.stall_seconds for phase in self.phases)

    @property
    def peak_fast_bytes(self) -> int:
        """Most bytes in use in fast memory at any moment of the predicted step."""
        return max((phase.fast_bytes for phase in self.phases), default=0)

    def describe(self) -> str:
        """A table to print: one line a unit, then totals and reasons."""
        from dithc.automem.planning.table import table

        return table(self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """The reverse of `to_dict`.

        Raises:
            UserError: another schema, or fields that are missing or unknown.
        """
        if data.get("schema") != SCHEMA:
            raise _unreadable(f"schema {data.get('schema')}", f"schema {SCHEMA}")
        fields = {key: value for key, value in data.items() if key != "schema"}
        try:
            units = {
                name: Decision(**{**decision, "saved": tuple(decision["saved"])})
                for name, decision in fields.pop("units").items()
            }
            phases = tuple(Phase(**phase) for phase in fields.pop("phases"))
            reasons = tuple(fields.pop("reasons"))
            fast, slow = Level(**fields.pop("fast")), Level(**fields.pop("slow"))
            return cls(units=units, phases=phases, reasons=reasons, fast=fast, slow=slow, **fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise _unreadable(str(error), "the fields that this version writes") from error

    def to_json(self) -> str:
        """Text of `to_dict`."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The reverse of `to_json`.

        Raises:
            UserError: not JSON, or not a plan.
        """
        try:
            data = parse(text)
        except ValueError as error:
            raise _unreadable(str(error), "JSON") from error
        if not isinstance(data, dict):
            raise _unreadable(type(data).__name__, "an object")
        return cls.from_dict(data)


def _unreadable(got: str, expected: str) -> Exception:
    return problem("memory plan", got=got, expected=expected, remedy="let AutoMem make it again with this version")
