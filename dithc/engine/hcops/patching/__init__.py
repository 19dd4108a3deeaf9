"""HCOps operators for any torch module: `patch` before training and `unpatch` after it, without changes to the model.

Purpose: models of other libraries decide at run time what they call, so nothing is replaced in them. Parameters, their
names, modules and classes stay the same, and copies, checkpoints and hooks keep working.
Contents: during a patched model's forward pass, `dispatch_mode` intercepts functions of torch in all its modules. `operators`
decides whether the kernels support a call. `autotune` measures each operator, shape and type once against torch, and
stores the result. The faster side serves. `optimizer` does the same for AdamW.
Invariants:
- A patch adds only hooks on modules, and a `forward` to modules that compute an RMSNorm by hand (`custom_rmsnorm`). `unpatch`
  removes them and restores the original results bit for bit.
- A served call returns torch's shape, type and strides, for output and gradients.
- Only torch runs calls inside its tracers, modes and transformations (`operators.torch_only`), without measurements.
- Recomputation of modules (torch.utils.checkpoint, AutoMem) makes the choices of the forward pass, because each module
  with children opens the mode itself. Do not patch models that recompute bare functions or modules without parts.
Extending: add a function with torch's arguments to `operators.py`, and its entry to `OPERATORS`.
"""

from dithc.engine.hcops.patching.hooks import PatchedModel, patch, unpatch

__all__ = ["PatchedModel", "patch", "unpatch"]
