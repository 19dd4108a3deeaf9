"""Codecs: conversion of tiles to latents and back by built-in and external networks, behind one interface.

`open_codec` opens the configured codec. `Codec` is the common interface and `KlCodec` a codec with a network.
`autoencoder` is the built-in network and `DiffusersAutoencoder` a network of diffusers.

Invariants: an external autoencoder is validated before any work. Its latents are stored normalized. No weights are
downloaded.

Extending: a new codec is a model in dithc.config.schema.codecs and a branch of `open_codec`.
"""

from dithc.latents.codecs import autoencoder
from dithc.latents.codecs.codec import CODEC_FILE, LARGEST_FP16, Codec, KlCodec, check_sides
from dithc.latents.codecs.diffusers_autoencoder import DiffusersAutoencoder
from dithc.latents.codecs.opening import open_codec

__all__ = [
    "CODEC_FILE",
    "LARGEST_FP16",
    "Codec",
    "DiffusersAutoencoder",
    "KlCodec",
    "autoencoder",
    "check_sides",
    "open_codec",
]
