"""HCOps operators for any torch module: `patch` before training and `unpatch` after it, without changes to the model.

Purpose: models of other libraries decide at run time what they call, so nothing is replaced in them. Parameters, their
names, modules and classes stay the same, and copies, checkpoints and hooks keep working.
Contents: during a patched model's forward pass, `calls` intercepts `linear`, `layer_norm`, `rms_norm`, `gelu`, `silu`
and `scaled_dot_product_attention` in all its modules. `operators` decides whether the kernels support a call. `choice`
measures each operator, shape and type once, forward and backward, alternating with torch, and stores the result next to
the tuning of the matrix products. The faster side serves. `optimizer` does the same for AdamW.
Invariants:
- A patch adds only hooks on modules, and a `forward` to modules that compute an RMSNorm by hand (`by_hand`). `unpatch`
  removes them and restores the original results bit for bit.
- A served call returns torch's shape, type and strides, for output and gradients. torch runs calls that the kernels do
  not support or serve slower; the table that `patch` returns contains the reason.
- Only torch runs calls inside its tracers, modes and transformations (`operators.unseen`). Nothing is measured there,
  and a trace contains only torch's operators.
- Recomputation of modules (torch.utils.checkpoint, AutoMem) makes the choices of the forward pass, because each module
  with children opens the mode itself. torch runs the recomputation of a bare function or a module without parts, so do
  not patch such models.
Extending: add a function with torch's arguments to `operators.py`, and its entry to `OPERATORS`.
"""

from dithc.hcops.patching.hooks import Patched, patch, unpatch

__all__ = ["Patched", "patch", "unpatch"]
