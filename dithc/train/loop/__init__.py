"""Records of the steps of a training run: metrics, validation and traces.

Contents: `TrainingLog` (metrics in `METRICS_FOLDER` of the store); `AttemptLog`; `Validation` on held-out tiles; `Tracer`.
Invariants: nothing here changes training numbers; rank 0 writes, and all ranks take the same branches.
Extending: a metric is a key of `step.Trainer.step`; work between steps is a line of `run/attempt.py`.
"""

from dithc.train.loop.trace import Tracer
from dithc.train.loop.training_log import METRICS_FOLDER, AttemptLog, TrainingLog, Values
from dithc.train.loop.validation import Validation

__all__ = ["METRICS_FOLDER", "AttemptLog", "Tracer", "TrainingLog", "Validation", "Values"]
