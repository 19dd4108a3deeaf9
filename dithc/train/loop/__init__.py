"""The loop over steps, and what is kept of each: metrics, validation, a trace on request.

What: `loop` takes steps until the job is done or has to stop; `Journal` writes the metrics of each into the store
(`METRICS_FOLDER`), `AttemptLog` what one attempt was; `Validation` measures the loss on held-out tiles, `Tracer` records one
step for a viewer.
Why: what happened in a training is read from files beside its checkpoints, whoever started it and however often.
Invariants: nothing here changes the numbers of a training; rank 0 writes, all ranks take the same turns.
How to change it: a new metric is a key of `step.Trainer.step`; what is done between two steps is a line of `loop.py`.
"""

from dithc.train.loop.journal import METRICS_FOLDER, AttemptLog, Journal
from dithc.train.loop.loop import loop
from dithc.train.loop.trace import Tracer
from dithc.train.loop.validate import Validation

__all__ = ["METRICS_FOLDER", "AttemptLog", "Journal", "Tracer", "Validation", "loop"]
