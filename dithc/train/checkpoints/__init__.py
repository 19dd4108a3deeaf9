"""Checkpoints of a training run, and import and export of weights.

Contents: `TrainingState` (for other modules `ModuleState`) is saved and resumed; `CheckpointWriter` writes it; `read_weights` and
`export`. Invariants: every rank writes its own pieces from a copy taken between two steps; any number of ranks can load them.
Extending: contents are in `state.py`, writing is in `writer.py`.
"""

from dithc.train.checkpoints.export import export
from dithc.train.checkpoints.state import ModuleState, TrainingState, checkpoint_metadata, initial_state
from dithc.train.checkpoints.weights import read_weights
from dithc.train.checkpoints.writer import CheckpointWriter

__all__ = [
    "CheckpointWriter",
    "ModuleState",
    "TrainingState",
    "checkpoint_metadata",
    "export",
    "initial_state",
    "read_weights",
]
