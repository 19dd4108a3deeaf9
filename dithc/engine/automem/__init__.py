"""Memory placement of a training step, applied to a model from outside, because memory is a property of the machine.

`AutoMem(model, ...)` sets up a model and returns it. It recomputes blocks on request. With two memory tiers it records
a warm-up, computes a `Plan` and moves weights, gradients and saved tensors ahead of their use (section 4.2 of the
DiT-HC paper, Algorithm 1). `get_manager(model)` returns the `Manager`: plan, trace, counters, optimizer state and its update.

Invariants:

- Parameters, state dictionary names, outputs, losses and gradients stay bitwise equal.
- A plan is advice: late or unplaced tensors are used in place. Failed disk writes cost fast memory. Failed reads, and all
  failed copies of an update, are an OSError; without memory for a copy, failed reads are a SIGBUS.
- Between calls and after any backward pass, every parameter is in its original storage and may be moved. From `begin_step`
  to the end of the backward pass, change weights through the parameter or new data. Writes through `.data` may be lost.
- Later passes do not change a gradient that is still held.
- A unit waits for the deferred update of its weights. All other code calls `Manager.wait_for_updates` before access to
  weights, gradients or state, and before a backward pass. Compiled models do not wait: do not defer their updates.
- State ends with the model: then the tiers are empty. With one tier, or if everything fits, there are no hooks.
- A copy of a model (`copy.deepcopy`) is unmanaged. A second call replaces the first.
- Apply it before DistributedDataParallel and before compilation.

Extending: a new choice is an argument with a neutral default, and is logged. `planning` decides, `profiler.py` records,
`plan_executor.py` executes, with `saved_tensors.py`, `saved_tensor_transfers.py`, `weight_copies.py`, `gradient_offload.py`,
`deferred_updates.py` and `allocation_mode.py` (torch's tensors).
"""

from dithc.engine.automem.api import AutoMem, get_manager
from dithc.engine.automem.manager import Manager
from dithc.engine.automem.planning import Plan

__all__ = ["AutoMem", "Manager", "Plan", "get_manager"]
