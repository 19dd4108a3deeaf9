"""Codecs: what turns tiles into latents and back, ours and those of others, behind one interface.

What: `open_codec` opens the one that a configuration names; `Codec` is what all have in common, `KlCodec` one of a network:
`autoencoder` is ours, `DiffusersNetwork` one of diffusers.
Invariants: an autoencoder of others is tried before any work; its latents are stored normalised; no weights are fetched.
How to change it: a new codec is a model in dithc.config.codecs and a branch of `open_codec`.
"""

from dithc.latents.codecs import autoencoder
from dithc.latents.codecs.codec import CODEC_FILE, LARGEST_FP16, Codec, KlCodec
from dithc.latents.codecs.diffusers_networks import DiffusersNetwork
from dithc.latents.codecs.opening import open_codec

__all__ = ["CODEC_FILE", "LARGEST_FP16", "Codec", "DiffusersNetwork", "KlCodec", "autoencoder", "open_codec"]
