"""A training job from start to manifest.

Contents: `train` (`compose`); all parts and the loop (`attempt`); weights from a seed, a run or a file (`initial_weights`), a
memory check (`memory_check`), the manifest (`run_manifest`).
Invariants: as in `dithc.train`; a finished run is not repeated.
Extending: a part is a line of `Attempt`, after its inputs and before its users.
"""

from dithc.train.pipeline.attempt import trainer_of
from dithc.train.pipeline.compose import train
from dithc.train.pipeline.initial_weights import init_model

__all__ = ["init_model", "train", "trainer_of"]
