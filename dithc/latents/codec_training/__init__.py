"""The training of a small autoencoder on a data set's own tiles.

What: `train_codec` trains, measures and writes a codec.
Invariants: the same seed gives the same codec; it starts as the linear codec of its size.
How to change it: what is learnt at a step is in `steps.py`, what is measured of the result in `measures.py`.
"""

from dithc.latents.codec_training.training import train_codec

__all__ = ["train_codec"]
