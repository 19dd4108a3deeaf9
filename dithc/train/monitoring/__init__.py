"""Records of the steps of a training run: metrics, validation and slow ranks.

Contents: `TrainingLog` (metrics in `METRICS_FOLDER` of the store); `log_attempt`; `Validation` on held-out tiles;
`RankWatch` (slow ranks).
Invariants: nothing here changes training numbers; rank 0 writes, and all ranks take the same branches.
Extending: a metric is a key of `step.Trainer.step`; work between steps is a line of `pipeline/attempt.py`.
"""

from dithc.train.monitoring.rank_watch import SLOW_FILE, RankWatch
from dithc.train.monitoring.training_log import METRICS_FOLDER, TrainingLog, Values, log_attempt
from dithc.train.monitoring.validation import Validation

__all__ = [
    "METRICS_FOLDER",
    "SLOW_FILE",
    "RankWatch",
    "TrainingLog",
    "Validation",
    "Values",
    "log_attempt",
]
