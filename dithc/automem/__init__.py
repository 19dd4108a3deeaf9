"""Where the memory of a training step lies, decided from outside the model.

What: `AutoMem(model, recompute=...)` returns the same model, set up. Today's choice is between keeping the activations
of every block and computing them again in the backward pass; the placement of tensors over memory tiers (prefetch and
offload between fast and large memory, Algorithm 1 of the DiT-HC paper) comes through the same call.
Why: memory is a property of a machine and not of a model, so no model knows of it.
Invariants:
- The model's parameters, the names in its state dictionary, its outputs and its losses stay the same, to the bit.
- A copy of a model (`copy.deepcopy`, as for an average of weights) runs its own weights.
- Calling it again replaces the earlier choice. It is applied before DistributedDataParallel and before compilation.
How to change it: a new choice is an argument with a default that leaves the model alone, and a line in the log that says
what it did.
"""

from dithc.automem.decision import Plan
from dithc.automem.manager import Manager
from dithc.automem.wrap import AutoMem, manager

__all__ = ["AutoMem", "Manager", "Plan", "manager"]
