"""The Diffusion Transformer (DiT) of Peebles & Xie (2023), with original or modern blocks, as single-process code.

`DiT` maps `model(x, t, y)` to the noise, with its variance if sigma is learned. `DiTConfig` and `PRESETS` describe it,
and `flops_per_image` counts its operations. `official_state_dict` and `adapt_state_dict` fit a checkpoint to another task, and
`diffusers_keys` renames weights for diffusers.

Invariants:

- The model uses the operators of `hcops` only. Callers apply ranks, threads, placement and files from outside.
- The forward pass draws no random numbers: `y` already holds `config.null_label` for a dropped label.
- With original blocks, the state dictionary has the names, shapes and meaning of the released DiT checkpoints. Weights
  of one block type are meaningless in another, but may have the same names and shapes. Each checkpoint therefore
  stores its block type, and loading compares it.
- Initial weights come from torch's global generator: seed it before construction.

Extending: a new size is an entry of `training.SIZES`. A new field of `DiTConfig` needs its check there, its effect in
`dit.py` and its term in `flops.py`. A new difference that fine-tuning must bridge is a step in `checkpoint_adapter.py`.
"""

from dithc.model import diffusers_keys
from dithc.model.checkpoint_adapter import adapt_state_dict, official_state_dict
from dithc.model.dit import DiT
from dithc.model.flops import Flops, flops_per_image
from dithc.model.presets import PRESETS, DiTConfig

__all__ = [
    "PRESETS",
    "DiT",
    "DiTConfig",
    "Flops",
    "adapt_state_dict",
    "diffusers_keys",
    "flops_per_image",
    "official_state_dict",
]
