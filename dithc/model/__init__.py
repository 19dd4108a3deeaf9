"""The Diffusion Transformer of Peebles & Xie (2023) with adaLN-Zero, and with modern blocks, as single-process code.

What: `DiT` (`model(x, t, y)` predicts the noise, and its variance where sigma is learned), `PRESETS` and `DiTConfig`,
`flops_per_image`, the surgery that makes a checkpoint fit another task: `official_state`, `adapt`, and the names that
diffusers has for the weights: `diffusers_keys`.
Why: everything else in dithc trains, samples or measures this one network.
Invariants:
- It knows the operators of `hcops` and nothing of ranks, threads, placement or files; those are applied from outside.
- The forward pass draws no random numbers. Label dropout is done by the caller: `y` already holds `config.null_label`
  where a label was dropped. Training draws are counters of (seed, epoch, sample), and a model with a generator of its own
  would make them depend on batch and rank.
- Names, shapes and meaning of the state dictionary are those of the released DiT checkpoints, to the parameter, where blocks are
  of the original kind. Kinds do not mix: weights mean nothing in blocks of another one, and norms and rotations leave no trace in
  names and shapes, so a kind stands in each checkpoint beside its weights and is compared.
- Initial weights come from torch's global generator: seed it before construction.
How to change it: a new size is a line of `training.SIZES`; a new field of `DiTConfig` needs its check there, its effect in
`dit.py`, and its term in `flops.py`; a new difference that fine-tuning must bridge is a step in `surgery.py`.
"""

from dithc.model import diffusers_keys
from dithc.model.dit import DiT
from dithc.model.flops import Flops, flops_per_image
from dithc.model.presets import PRESETS, DiTConfig
from dithc.model.surgery import adapt, official_state

__all__ = ["PRESETS", "DiT", "DiTConfig", "Flops", "adapt", "diffusers_keys", "flops_per_image", "official_state"]
