"""The state of a training in files: what a checkpoint holds, how it is written beside the steps, and weights of and for others.

What: `State` is what is saved (of modules of others, `Kept`) and what goes on from it, `Saver` writes it; `read_weights` takes
weights of other programs, and `export` writes them.
Invariants: every rank writes its own pieces, from a copy made between two steps; any number of ranks takes up
a checkpoint of any other.
How to change it: what a checkpoint holds is in `content.py`, how it is written in `saving.py`.
"""

from dithc.train.checkpoints.content import Kept, State, facts, state_of
from dithc.train.checkpoints.export import export
from dithc.train.checkpoints.saving import Saver
from dithc.train.checkpoints.weights import read_weights

__all__ = ["Kept", "Saver", "State", "export", "facts", "read_weights", "state_of"]
