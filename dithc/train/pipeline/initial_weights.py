"""Initial model of a training run: fresh from the seed, or with weights of an earlier run or a file."""

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from dithc.config import training
from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import get_logger
from dithc.core.tensor_files import read_tensors
from dithc.diffusion.restoration import RadialCovariance
from dithc.engine.comm import Group
from dithc.latents import Latents, sample_posterior
from dithc.model import DiT, DiTConfig, adapt_state_dict
from dithc.train.checkpoints import read_weights

Weights = Literal["ema", "raw"]
GAUSSIAN_VALUES, MIN_ROWS = 1 << 25, 32  # most values, of at least some tiles
log = get_logger(__name__)


def init_model(
    run: training.RunConfig,
    *,
    shape: tuple[int, int, int],
    num_classes: int,
    seed: int,
    conditions: tuple[tuple[str, int], ...] = (),
    groups: tuple[training.BandGroup, ...] = (),
) -> DiT:
    """Return the network of a run, initialized from `seed` alone and therefore equal on every rank.

    `shape` is (C, height, width) of a latent, `conditions` and `groups` as in `DiTConfig`. A label dropout above 0 adds the
    null label.
    """
    settings = run.model
    width, depth, heads = settings.shape
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = DiT.from_preset(
            settings.preset,
            input_size=shape[1:],
            in_channels=shape[0],
            num_classes=num_classes,
            learn_sigma=settings.learn_sigma,
            class_dropout_prob=run.label_dropout,
            hidden_size=width,
            depth=depth,
            num_heads=heads,
            conditions=conditions,
            band_groups=groups,
            gaussian_prediction=settings.gaussian_prediction,
            **settings.block._asdict(),
        )
    count = sum(value.numel() for value in model.parameters())
    log.info(f"{settings.preset} with {count:,} parameters, {model.config.num_tokens} tokens, {num_classes} classes")
    return model


def fit_gaussian(model: DiT, latents: Latents, group: Group) -> None:
    """Set the constants of the Gaussian prediction from clear pixels of train latents, on all ranks to those of the first."""
    assert model.gaussian is not None
    constants = None
    if group.rank == 0:
        rng, rows = np.random.default_rng(0), latents.rows("train")
        count = max(MIN_ROWS, min(len(rows), GAUSSIAN_VALUES // math.prod(latents.shape)))
        rows = np.sort(rng.permutation(rows)[:count])
        views = np.zeros(len(rows), np.int64)
        noise = rng.standard_normal((len(rows), *latents.shape), np.float32)
        x = sample_posterior(latents, rows, views=views, posterior=noise)  # (n, C, h, w)
        if "masks" in latents.info:
            x = np.where(latents.clear(rows, views=views), x, np.nan)
        channels, size = range(model.config.in_channels), model.config.size
        grouped = [list(bands) for _, bands, _ in model.config.band_groups]
        mean, basis = np.empty(len(channels)), np.zeros((len(channels), len(channels)))
        variance = np.empty((len(channels), *size))
        for bands in ([band for band in channels if not any(band in own for own in grouped)], *grouped):
            covariance = RadialCovariance.of(x[:, bands])
            mean[bands], variance[bands] = covariance.mean, covariance.spectrum(size)
            basis[np.ix_(bands, bands)] = covariance.basis
        constants = {"mean": mean, "basis": basis, "variance": variance}
        log.info(f"Gaussian prediction: mean and covariance of {len(rows)} train tiles")
    values = group.broadcast_object(constants)
    model.gaussian.fit(**{name: torch.from_numpy(value) for name, value in values.items()})


def start_from_run(model: DiT, manifest: Path, *, weights: Weights, latents: Latents) -> None:
    """Load another run's last checkpoint and log all changes; UserError if it is damaged or does not fit.

    If the latents have all bands of the other run, the weights of each band are kept.
    """
    store, step = CheckpointStore.of_run(manifest)
    checkpoint = store.open(step, manifest=manifest)
    if checkpoint.meta["codec"] != (codec := latents.info["codec"]):
        log.warning(
            f"the initial weights were trained on latents of codec {checkpoint.meta['codec']}, these are of {codec}: "
            "they are useful only if the two latent spaces are similar"
        )
    source = DiTConfig(**checkpoint.meta["model"])
    before, bands = checkpoint.meta.get("bands") or [], latents.info.get("bands", [])
    channels = [bands.index(band) for band in before] if set(before) <= set(bands) else []
    tensors = read_tensors(checkpoint.weights(weights))
    state, changes = adapt_state_dict(tensors, model, source=source, channels=channels)
    model.load_state_dict(state)
    _log_changes(f"{weights} weights of step {step} in {checkpoint.folder}", changes)


def start_from_file(model: DiT, path: Path, *, weights: Weights) -> None:
    """Load weights of another program (`read_weights`) and log all changes; UserError if they do not fit."""
    tensors, source = read_weights(path, model.config, weights=weights)
    state, changes = adapt_state_dict(tensors, model, source=source)
    model.load_state_dict(state)
    _log_changes(f"weights in {path}", changes)
    log.info(
        "initial weights: the file does not specify the codec of their latents; they are useful only if that "
        "latent space is similar to this one"
    )


def _log_changes(origin: str, changes: list[str]) -> None:
    log.info(f"initial weights: {origin}")
    for change in changes or ["loaded without changes"]:
        log.info(f"initial weights: {change}")
