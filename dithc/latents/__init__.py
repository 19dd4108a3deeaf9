"""Tiles to latents to batches: codecs, encoded datasets, and the counter-based draws of training.

`open_codec` and `train_codec` return autoencoders behind one interface: pixel, sd-vae, kl-vae, and external diffusers
and torchscript models. `codecs` contains their networks. `Latents.encode` writes the latents of tiles and their mirror
images, optionally with quarter turns and with clusters as classes, and `Latents` reads them. `Batches` draws the
samples of a training step, `ValidationLatents` the samples of a validation loss. Encoding once is cheaper than encoding
in every epoch.

Invariants:

- Latents store the hash of their codec's weights and are rejected with another codec.
- A shard with its final name is complete and hashed.
- Views are encoded; latents are never rotated.
- (seed, epoch, sample) alone determines order, view, dropped label, timestep and noise of a sample.
- An external autoencoder is validated before any work, and its latents are stored normalized.
- Only `codecs/diffusers_autoencoder.py` imports diffusers.

Extending: a new codec is a model in dithc.config.schema.codecs and a branch of `open_codec`. Another draw is a field of
`Batch`.
"""

from dithc.latents import codecs
from dithc.latents.batches import Batch, Batches, ValidationLatents, sample_posterior
from dithc.latents.codec_training import train_codec
from dithc.latents.codecs import Codec, open_codec
from dithc.latents.encode import apply_view
from dithc.latents.reader import Latents

__all__ = [
    "Batch",
    "Batches",
    "Codec",
    "Latents",
    "ValidationLatents",
    "apply_view",
    "codecs",
    "open_codec",
    "sample_posterior",
    "train_codec",
]
