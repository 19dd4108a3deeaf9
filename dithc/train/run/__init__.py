"""A training from its job to its manifest: everything composed in one order.

What: `train` pre-trains or fine-tunes a DiT up to a step (`compose`): weights from a seed, an earlier run or a file (`setup`,
`fresh_model`), memory looked at before the first step (`room`), the manifest at the end (`finish`).
Why: the order in which the parts come up is one decision, said in one place.
Invariants: those of `dithc.train`; a training that is done is not done again.
How to change it: another part has its line in `compose.py`, between what it needs and what needs it.
"""

from dithc.train.run.compose import train
from dithc.train.run.setup import fresh_model

__all__ = ["fresh_model", "train"]
