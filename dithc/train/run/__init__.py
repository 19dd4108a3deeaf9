"""A training job from start to manifest.

Contents: `train` (`compose`); all parts and the loop (`attempt`); weights from a seed, a run or a file (`setup`), a
memory check (`room`), the manifest (`finish`).
Invariants: as in `dithc.train`; a finished run is not repeated.
Extending: a part is a line of `Attempt`, after its inputs and before its users.
"""

from dithc.train.run.attempt import trainer_of
from dithc.train.run.compose import train
from dithc.train.run.setup import fresh_model

__all__ = ["fresh_model", "train", "trainer_of"]
