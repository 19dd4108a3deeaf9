"""Tiles to latents to batches: codecs, encoded data sets, and the counter-based draws of training.

What: `open_codec` and `train_codec` make autoencoders (pixel, sd-vae, kl-vae; those of others: diffusers, torchscript) behind one
interface (`codecs` has the networks they are made of), `Latents.encode` writes the latents of tiles and of their mirror images,
turned too if asked, `Latents` reads them back, `Batches` draws what a step learns, `HeldOut` what it is measured on.
Why: encoding once is cheaper than at every epoch, and what a sample is must not depend on ranks, resume or a walk of folders.
Invariants: latents name their codec by the hash of its weights and are refused with another; a shard with its final name is
complete and hashed; views are encoded, latents never turned; order, view, dropped label, timestep and noise of a sample follow
from (seed, epoch, sample) alone; an autoencoder of others is tried before any work, and its latents are stored normalised;
diffusers is imported in `diffusers_networks.py` alone.
How to change it: a new codec is a model in dithc.config.codecs and a branch of `open_codec`; another draw is a field of `Batch`.
"""

from dithc.latents import codecs
from dithc.latents.batches import Batches
from dithc.latents.codec_training import train_codec
from dithc.latents.codecs import Codec, open_codec
from dithc.latents.held_out import HeldOut
from dithc.latents.reader import Latents
from dithc.latents.views import view_of

__all__ = ["Batches", "Codec", "HeldOut", "Latents", "codecs", "open_codec", "train_codec", "view_of"]
