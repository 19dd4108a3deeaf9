"""Memory of tensors: pools of pre-faulted huge pages, and budgeted tiers.

Purpose: page faults cost more than many operators, and large training steps must control the location of each tensor.
Contents: `Pool` reuses huge pages under an optional hard budget. `output_pool` serves operator outputs, and `set_output_pool`
replaces it. `Tiers` are the memory levels, fastest first, each a `Tier` that overflows into the next. `tier_specs`
derives them from machine and settings. `CopyEngine` copies between tiers in the background, and
`StreamedTensors` updates tensors of a file tier by pieces.
Invariants: a pool tensor is an ordinary torch tensor, uninitialized, and outlives its pool. A tier never exceeds its
budget, used and idle. Exhaustion is a counted spill, and a MemoryError after the last tier. Without a budget, memory
stays near its peak use.
Extending: another type of tier is a `TierKind` with a rule in `tier_specs.py` and memory in `tiers.py`. The pool is
`kernels/memory/pool.c`. It has no size classes: blocks are cut to the byte and merged.
"""

from dithc.engine.memory.copy_bandwidth import file_rates
from dithc.engine.memory.copy_engine import CopyEngine
from dithc.engine.memory.pool import Pool, output_pool, set_output_pool
from dithc.engine.memory.streamed_tensors import StreamedTensors
from dithc.engine.memory.tier_specs import TierSpec, tier_specs
from dithc.engine.memory.tiers import Tier, Tiers

__all__ = [
    "CopyEngine",
    "Pool",
    "StreamedTensors",
    "Tier",
    "TierSpec",
    "Tiers",
    "file_rates",
    "output_pool",
    "set_output_pool",
    "tier_specs",
]
