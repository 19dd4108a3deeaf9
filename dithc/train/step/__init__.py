"""One optimizer step, and recovery from steps with numbers that are not finite.

Contents: `Trainer` makes steps, with a `Guide` if the run trains guidance; `Recovery` handles a step that is
`NotFinite`.
Invariants: the gradient is the mean over the global batch, for any micro-batches and ranks.
Extending: a metric is a key of `Trainer.step`.
"""

from dithc.train.step.guidance_training import Guide, start_of
from dithc.train.step.nonfinite import LeftOut, NotFinite, Recovery
from dithc.train.step.step import Source, Trainer, arithmetic, settle

__all__ = ["Guide", "LeftOut", "NotFinite", "Recovery", "Source", "Trainer", "arithmetic", "settle", "start_of"]
