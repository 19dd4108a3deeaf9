"""The memory that tensors come from: pools of pre-faulted huge pages, and tiers of memory with budgets of bytes.

What: `Pool`, tensors over pre-faulted huge pages that are used again, with a hard budget where one is wanted; `hot_pool`, the one
that outputs of operators come from, and `use_pool`, which names another; `Tiers`, the memory of a process from the fastest to the
slowest, each a `Tier` with a pool that overflows into the one below it; `specs_of`, the tiers that a machine and its settings
give; `Copies`, which copies tensors between tiers in the background.
Why: on these machines page faults cost more than many operators, and a training step that is larger than fast memory has to know
where each of its tensors is.
Invariants: a tensor of a pool is an ordinary torch tensor, and outlives its pool; what lives in it is undefined until it is
written. What a tier has taken from the system, in use and idle, is never above its budget, not by a byte, not for a moment;
exhaustion is a counted spill to the next tier, and MemoryError only after the last. Without a budget, blocks in use and idle
together stay near the most that was ever in use at once.
How to change it: a kind of tier is a `TierKind`, its rule in `specs.py` and its memory in `tiers.py`; the pool itself is
`kernels/memory/pool.c`, which has no size classes: blocks are cut to the byte and joined again.
"""

from dithc.memory.copies import Copies
from dithc.memory.pool import Pool, hot_pool, use_pool
from dithc.memory.specs import TierSpec, specs_of
from dithc.memory.tiers import Tier, Tiers

__all__ = ["Copies", "Pool", "Tier", "TierSpec", "Tiers", "hot_pool", "specs_of", "use_pool"]
