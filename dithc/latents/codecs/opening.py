"""Opening of the configured codec after a check of its files."""

from pathlib import Path
from typing import Any

import torch

from dithc.config import codecs
from dithc.core.artifacts import Manifest, sha256_file
from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import get_logger, user_error
from dithc.core.weights import digest_of_files
from dithc.latents.codecs.autoencoder import CONFIG_FILE, WEIGHTS_FILE, Autoencoder, autoencoder_digest
from dithc.latents.codecs.codec import CODEC_FILE, Codec, KlCodec, PixelCodec, SdCodec
from dithc.latents.codecs.diffusers_autoencoder import DiffusersAutoencoder, network_files
from dithc.latents.codecs.external import open_external

log = get_logger(__name__)


def open_codec(settings: codecs.Codec, *, info: dict[str, Any], folder: Path | None = None) -> Codec:
    """Return the configured codec for one dataset, with `info` from dataset.json and `folder` from `train_codec`.

    Raises UserError if files are missing or damaged, or the bands of the codec differ from the dataset's.
    """
    if isinstance(settings, codecs.PixelCodecConfig):
        return PixelCodec(info)
    if isinstance(settings, codecs.SdVaeConfig):
        return _open_sd(settings, info)
    if isinstance(settings, codecs.ExternalCodecConfig):
        return open_external(settings, info)
    assert folder is not None, "a kl-vae codec needs the folder of the codec stage"
    return _open_kl(folder, info)


def _open_sd(settings: codecs.SdVaeConfig, info: dict[str, Any]) -> Codec:
    folder = Path(settings.path)
    fix = (
        f"copy both files of Stable Diffusion's autoencoder (such as stabilityai/sd-vae-ft-ema) into {folder}, or set the "
        "codec's `path`; nothing is downloaded"
    )
    net = DiffusersAutoencoder.load(folder, fix=fix, classes=("AutoencoderKL",), memory_format=torch.channels_last)
    if any(net.normalization.shift):
        raise user_error(
            f"autoencoder in {folder} requires a latent shift, which `kind: sd-vae` does not support",
            got=f"a shift of {net.normalization.shift}",
            expected="Stable Diffusion's autoencoder, without a latent shift",
            fix="use `kind: diffusers`",
        )
    if net.bands != 3:
        raise user_error(f"autoencoder in {folder} is not for RGB", got=f"{net.bands} bands", expected=3, fix=fix)
    identity = f"sd-vae-{digest_of_files(network_files(folder), settings={'scale': settings.scaling_factor})[:12]}"
    return SdCodec(net, info, id=identity, scale=settings.scaling_factor, bands=tuple(info["display"]["bands"]))


def _open_kl(folder: Path, info: dict[str, Any]) -> Codec:
    fix = "rerun the codec stage (`dithc codec`)"
    for name in (CONFIG_FILE, WEIGHTS_FILE, CODEC_FILE):
        Manifest.verified(folder / name)
    net = Autoencoder.load(folder, fix=fix)
    try:
        data = parse_json(require_regular_file(folder / CODEC_FILE).read_text())
        identity, bands, sha256 = str(data["id"]), tuple(data["bands"]), data["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise user_error(
            f"{folder / CODEC_FILE} cannot be read", got=repr(error), expected="the output of `dithc codec`", fix=fix
        ) from error
    digest = sha256_file(folder / WEIGHTS_FILE)
    if digest != sha256 or identity != f"kl-vae-{autoencoder_digest(folder)}":
        raise user_error(
            f"codec in {folder} does not match its {CODEC_FILE}",
            got=f"weights with SHA-256 {digest[:12]}... (or an edited {CODEC_FILE})",
            expected=f"{sha256[:12]}... and id {identity}",
            fix=fix,
        )
    expected = tuple(info["bands"])
    if len(bands) != len(expected):
        raise user_error(
            f"number of bands of the codec in {folder} differs from the dataset",
            got=f"{len(bands)} ({', '.join(bands)})",
            expected=f"{len(expected)} ({', '.join(expected)})",
            fix="use a codec trained on tiles with the same bands",
        )
    if bands != expected:
        log.warning(f"codec {identity} was trained on bands {', '.join(bands)} but is applied to {', '.join(expected)}")
    return KlCodec(net, info, id=identity, scale=1.0, bands=expected)
