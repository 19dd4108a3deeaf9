"""Training of a small autoencoder on the tiles of a dataset.

`train_codec` trains, measures and writes a codec.

Invariants: equal seeds give equal codecs. Training starts from the linear codec of the same size.

Extending: `training.py` defines the training step, `reconstruction_metrics.py` the quality measures.
"""

from dithc.latents.codec_training.training import train_codec

__all__ = ["train_codec"]
