"""What a plan says: one decision for each unit and each piece of state, and the timeline that it is expected to give.

Plain data, JSON both ways. A plan is advice: a tensor lies somewhere valid with any plan or with none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    """Decision for a unit.

    Its loads are copies of its weights (if `weights` is "copied"), before forward and backward, and before backward the offloaded
    saved tensors that it reads first. They start `forward_ahead` or `backward_ahead` turns early, from 0 (its own turn) to the
    start of the step. During forward, only weights are loaded for backward. If that reaches back to the unit's own forward
    turn, the forward copy is kept. The room is the fast memory required at the turn: the unit's use, and all loads that start
    there.
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
    """Predicted turn: a unit's forward or backward pass, or the update; `stall_seconds` of waiting, then `seconds` of work."""

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
