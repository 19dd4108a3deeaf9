"""Checkpoints of a training run, and import and export of weights.

Contents: `State` (for other modules `Kept`) is saved and resumed; `Saver` writes it; `read_weights` and `export`.
Invariants: every rank writes its own pieces from a copy taken between two steps; any number of ranks can load them.
Extending: contents are in `state.py`, writing is in `writer.py`.
"""

from dithc.train.checkpoints.export import export
from dithc.train.checkpoints.state import Kept, State, facts, state_of
from dithc.train.checkpoints.weights import read_weights
from dithc.train.checkpoints.writer import Saver

__all__ = ["Kept", "Saver", "State", "export", "facts", "read_weights", "state_of"]
