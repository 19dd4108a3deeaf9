"""One optimizer step, and what is done where its numbers are not finite.

What: `Trainer` makes steps, with a `Guide` where guidance is trained in; `Recovery` deals with a step that is `NotFinite`.
Invariants: the gradient is the mean over the global batch, whatever the micro-batches and ranks.
How to change it: a new metric is a key of `Trainer.step`.
"""

from dithc.train.step.guide import Guide, start_of
from dithc.train.step.nonfinite import LeftOut, NotFinite, Recovery
from dithc.train.step.step import Source, Trainer, arithmetic, settle

__all__ = ["Guide", "LeftOut", "NotFinite", "Recovery", "Source", "Trainer", "arithmetic", "settle", "start_of"]
