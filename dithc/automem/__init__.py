"""Where the memory of a training step lies, decided from outside the model.

What: `AutoMem(model, ...)` returns the same model, set up. It chooses between keeping the activations of every block and
computing them again in the backward pass; and with two tiers of memory it records a warm-up, makes a `Plan` and follows it:
weights, gradients and saved tensors live in fast or slow memory and move ahead of their use (section 4.2 of the DiT-HC paper,
Algorithm 1). `manager(model)` is its `Manager`: the plan, the trace, counters, homes for the optimizer's state.
Why: memory is a property of a machine and not of a model, so no model knows of it.
Invariants:
- The model's parameters, the names in its state dictionary, its outputs, its losses and gradients stay the same, to the bit.
- A plan is advice. A tensor is valid wherever it lies; what comes late or finds no room is used where it is. A disk that fails
  to write costs room in fast memory; one that fails to read is an OSError, or a SIGBUS where there was no room for a copy.
- Between calls of the model and after a backward pass, also one that failed, every parameter is at home, which others may move
  at any time. From `begin_step` to the end of the backward pass weights are changed by operations on the parameter, or by
  giving it other data: what is written through `.data` may be lost.
- A gradient that somebody keeps stays as it is, whatever passes follow.
- Nothing outlives the model: then the tiers are empty. With one tier, or where everything fits, there are no hooks.
- A copy of a model (`copy.deepcopy`, as for an average of weights) runs its own weights, and nobody manages it.
- Calling it again replaces the earlier choice. It is applied before DistributedDataParallel and before compilation.
How to change it: a new choice is an argument with a default that leaves the model alone, and a line in the log that says what it
did. `planning` decides, purely; `record.py` watches; `follow.py` acts, with `saved.py` (handles of saved
tensors), `moves.py` (their copies), `weights.py` (copies of weights), `gradients.py` and `mode.py` (torch's own tensors).
"""

from dithc.automem.manager import Manager
from dithc.automem.planning import Plan
from dithc.automem.wrap import AutoMem, manager

__all__ = ["AutoMem", "Manager", "Plan", "manager"]
