"""Content of a plan: a decision per unit and piece of state, and the predicted timeline, as plain JSON-compatible data.

A plan is advice: every tensor has a valid place with any plan or without a plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Place = Literal["fast", "slow"]
Kind = Literal["outside", "state", "weights", "gradients", "saved", "working"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class MemoryLevel:
    """Memory level as seen by the planner."""

    name: str
    budget_bytes: int | None  # None: unlimited
    copy_bytes_per_second: float  # write rate of copies
    read_bytes_per_second: float  # read rate of copies


class CopyBandwidth(NamedTuple):
    """Bytes per second of each copy stream between two levels, one stream at a time."""

    load: float  # into fast memory
    offload: float  # out of fast memory


def rates_between(fast: MemoryLevel, slow: MemoryLevel) -> CopyBandwidth:
    """Return copy rates: the lower of the source's read rate and the target's write rate."""
    return CopyBandwidth(
        load=min(slow.read_bytes_per_second, fast.copy_bytes_per_second),
        offload=min(fast.read_bytes_per_second, slow.copy_bytes_per_second),
    )


@dataclass(frozen=True, kw_only=True)
class UnitDecision:
    """Decision for a unit.

    Its loads are copies of its weights (if `weights` is "copied"), before forward and backward, and before backward the
    offloaded saved tensors that it reads first. They start `forward_ahead` or `backward_ahead` slots early, from 0 (its
    own slot) to the start of the step. During forward, only weights are loaded for backward. If that reaches back to
    the unit's own forward slot, the forward copy is kept. `required_fast_bytes` is the fast memory required at the slot: the
    unit's use, and all loads that start there.
    """

    weights: Literal["fast", "copied", "in place"]
    gradients: Place  # place from the unit's backward pass to the update
    saved: tuple[
        Literal["keep", "offload"], ...
    ]  # by ordinal; a recomputed unit has one choice for all its inputs and "keep" for the rest
    recompute: bool = False  # saves only its inputs and runs forward again before backward
    forward_ahead: int = 0
    backward_ahead: int = 0
    required_fast_bytes: int = 0
    backward_required_fast_bytes: int = 0
    weight_bytes: int = 0  # sizes for tables and figures
    kept_bytes: int = 0  # of saved tensors that stay
    offloaded_bytes: int = 0  # of offloaded saved tensors

    @property
    def moves_tensors(self) -> bool:
        """True if the unit's pass needs copies or recomputation."""
        return self.weights == "copied" or "offload" in self.saved or self.recompute


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Predicted slot: a unit's forward or backward pass, or the update; `stall_seconds` of waiting, then `seconds` of work."""

    name: str
    kind: Literal["forward", "backward", "update"]
    seconds: float
    stall_seconds: float
    fast_bytes: int  # peak use
    slow_bytes: int
    fast_parts: Mapping[Kind, int]  # `fast_bytes` by content
    slow_parts: Mapping[Kind, int]
    load_bytes: int  # of copies that start in this phase
    offload_bytes: int
