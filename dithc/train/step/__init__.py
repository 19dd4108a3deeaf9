"""One optimizer step, and recovery from steps with numbers that are not finite.

Contents: `Trainer` makes steps; `Recovery` handles a step that is `NonFiniteError`.
Invariants: the gradient is the mean over the global batch, for any micro-batches and ranks.
Extending: a metric is a key of `Trainer.step`.
"""

from dithc.train.step.nonfinite import NonFiniteError, Recovery, SkippedSteps
from dithc.train.step.step import BatchSource, Trainer, autocast_context, prepare_strategy

__all__ = [
    "BatchSource",
    "NonFiniteError",
    "Recovery",
    "SkippedSteps",
    "Trainer",
    "autocast_context",
    "prepare_strategy",
]
