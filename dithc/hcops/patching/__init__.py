"""The operators of HCOps for any torch module: `patch` before a training, `unpatch` after it, and nothing of the model changed.

What: while a patched model's forward runs, the calls of `linear`, `layer_norm`, `rms_norm`, `gelu`, `silu` and
`scaled_dot_product_attention` that it makes, wherever in its modules, are seen (`calls`), and those that our kernels take
(`operators`) are served by them where that is faster: measured once for each operator, shape and type, forward and backward,
in turns with torch (`choice`), and kept beside the tuning of the matrix products. `optimizer` does the same for AdamW.
Why: a model is somebody else's code. What it calls is known only when it runs, so nothing is replaced in it: parameters, their
names, modules and classes stay, and copies of the model, checkpoints and hooks do as they did.
Invariants:
- Hooks on modules are all that a patch adds, and a `forward` to those that compute an RMSNorm by hand (`by_hand`); `unpatch`
  removes them, and what runs then is what ran before, to the bit.
- A served call returns torch's shape, type and strides, in its output and its gradients. Torch itself runs calls that the
  kernels do not serve or serve slower, and the table that `patch` returns gives the reason.
- Torch alone runs calls inside its tracers, modes and transformations (`operators.unseen`). Nothing is measured there, and a
  trace contains torch's operators only.
- Recomputation of modules (torch.utils.checkpoint, AutoMem) makes the choices of the forward pass: each module with children
  opens the mode for itself. That of a bare function, or of a module without parts, is torch's: it does not go with a patch.
How to change it: an operator is a function in `operators.py` with the arguments of torch's, and its line in `OPERATORS`.
"""

from dithc.hcops.patching.hooks import Patched, patch, unpatch

__all__ = ["Patched", "patch", "unpatch"]
