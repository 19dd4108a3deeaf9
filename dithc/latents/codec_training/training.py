"""Reproducible training of a small KL autoencoder on a dataset's train tiles.

Legend: N batch, C bands, H, W tile or crop; Z latent channels, h, w latent.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from dithc.config import codecs
from dithc.core.artifacts import atomic_replace, outputs, sha256_file
from dithc.core.logging import MetricsWriter, get_logger, progress, unwritten, user_error
from dithc.data import BandScaling, Rows, Tiles, write_png
from dithc.engine import hcops
from dithc.latents.batches import SampleOrder, generator, no_training_tiles_error
from dithc.latents.codec_training.latent_augmentation import augment
from dithc.latents.codec_training.optimizer import CodecOptimizer
from dithc.latents.codec_training.reconstruction_metrics import Pairs, measure, psnr
from dithc.latents.codec_training.residuals import fit_bands, fit_noise
from dithc.latents.codecs import CODEC_FILE, KlCodec, autoencoder, check_sides
from dithc.latents.encode import apply_view

CROP_STREAM = 2
KL_WEIGHT = 1e-6  # of the KL term relative to the reconstruction loss
WARMUP_SHARE = 0.05
MEASURED_TILES, MEASURED_BATCH = 512, 16
DRAWN_TILES = 8
GRID_FILE, BANDS_FILE = "grid.png", "bands.png"
METRICS_FOLDER, BUILD_FOLDER = "metrics", ".build"
FILES = (autoencoder.WEIGHTS_FILE, autoencoder.CONFIG_FILE, GRID_FILE, BANDS_FILE, CODEC_FILE)  # in write order
log = get_logger(__name__)


def train_codec(settings: codecs.KlVaeConfig, tiles: Tiles, folder: Path, *, seed: int) -> dict[str, Any]:
    """Train, measure and write a codec: config.json, weights, grid.png and last codec.json.

    The seed determines order, crops, views, noise and initial weights. Training starts from the linear codec of its
    size. Afterwards, latent channels are normalized to mean 0 and standard deviation 1 on training tiles. Complete
    files replace those in `folder`. `metrics` in it receives the loss of every step and drops earlier runs.

    Returns:
        steps, loss, results of `measure` on `psnr_split` (validation, or training without one), the same PSNR of the
        linear codec, parameters and compute type.

    Raises:
        UserError: There are no training tiles, the factor does not divide the tile size, training diverged, or the disk
            is full.
    """
    if not len(tiles.rows("train")):
        raise no_training_tiles_error("the codec has no training tiles", got="0 tiles in the train split")
    size = int(tiles.info["size"])
    check_sides(settings.kind, settings.downsampling_factor, size, size)
    crops = Crops(settings, tiles, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = settings.model_dump(include={field.name for field in fields(autoencoder.Sizes)})
        net = autoencoder.Autoencoder(autoencoder.Sizes(bands=len(tiles.info["bands"]), **sizes))
        train, val = _subsample(tiles.rows("train")), _subsample(tiles.rows("val"))
        measured_rows = val if len(val) else train
        net.start_linear(_images(tiles, train))
        linear_db = psnr(_reconstruct(net, tiles, measured_rows, linear=True))
        log.info(f"training starts from the linear codec of this size ({linear_db:.2f} dB)")
        metrics = _start_output(folder)
        loss, compute = _optimize(net, settings, crops, metrics, seed=seed)
    net.eval().requires_grad_(False)
    net.standardize(*_moments(net, tiles, train))
    fit_noise(net, lambda: _images(tiles, train))
    fit_bands(net, _images(tiles, train))
    numbers = {
        "steps": settings.steps,
        "loss": loss,
        **_measure(tiles, _reconstruct(net, tiles, measured_rows)),
        "psnr_split": "val" if len(val) else "train",
        "psnr_linear_db": linear_db,
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "compute": compute,
    }
    _write(net, tiles, folder, numbers=numbers)
    return numbers


class Crops:
    """Seeded crops of training tiles for each step: random orientations, with corners on the grid of latents."""

    def __init__(self, settings: codecs.KlVaeConfig, tiles: Tiles, *, seed: int) -> None:
        self._settings, self._tiles, self._seed = settings, tiles, seed
        self._order = SampleOrder(tiles.rows("train"), seed=seed)

    def batch(self, step: int) -> torch.Tensor:
        """Return the crops of a step, counted from 0: float32 (N, C, H, W)."""
        size, factor = self._settings.batch_size, self._settings.downsampling_factor
        epochs, rows = self._order.lookup(step * size + np.arange(size, dtype=np.int64))
        stored = self._tiles.stored(rows)  # (N, C, tile, tile)
        side = self._settings.crop(stored.shape[-1])
        corners = (stored.shape[-1] - side) // factor + 1
        crops, views = [], []
        for image, epoch, row in zip(stored, epochs.tolist(), rows.tolist(), strict=True):
            top, left, view = generator(seed=self._seed, epoch=epoch, row=row, stream=CROP_STREAM).random(3)
            y, x = int(top * corners) * factor, int(left * corners) * factor
            crops.append(image[:, y : y + side, x : x + side])  # (C, H, W)
            views.append(int(view * self._settings.orientations))
        scaled = torch.from_numpy(self._tiles.stretch.scaled(np.stack(crops)))  # (N, C, H, W)
        return torch.stack([apply_view(crop, view) for crop, view in zip(scaled, views, strict=True)])


def has_bf16() -> bool:
    """Return whether bf16 convolutions are native (1.5 to 2 times as fast); emulated bf16 is slower than fp32."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16"))


def schedule(step: int, steps: int) -> float:
    """Return the learning rate factor: linear warm-up over a twentieth of the steps, then half a cosine to 0."""
    warmup = WARMUP_SHARE * steps + 1.0
    return min(1.0, (step + 1) / warmup) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def _start_output(folder: Path) -> MetricsWriter:
    """List the files of the codec in the marker of its folder and start new metrics."""
    output = outputs.OutputFolder(folder)
    outputs.remove(folder / BUILD_FOLDER)
    output.plan(folder / name for name in FILES)
    output.prune([], prefix=f"{METRICS_FOLDER}/")
    return MetricsWriter(folder / METRICS_FOLDER, claim=output.plan)


def _subsample(rows: Rows) -> Rows:
    return rows[:: max(1, math.ceil(len(rows) / MEASURED_TILES))]


def _optimize(
    net: autoencoder.Autoencoder, settings: codecs.KlVaeConfig, crops: Crops, metrics: MetricsWriter, *, seed: int
) -> tuple[float, str]:
    """Run the training loop; return the mean loss of the last tenth of the steps and the compute type."""
    bf16 = has_bf16()
    compute = "bf16" if bf16 else "fp32"
    log.info(f"codec computes in {compute}: this CPU {'has' if bf16 else 'lacks'} bf16 instructions")
    optimizer = CodecOptimizer(net)
    losses: list[float] = []
    # With PyTorch's operators an update takes 13 instead of 45 ms: its threads spin after convolutions and would compete
    # with those of hcops.
    with hcops.use("reference"), progress(total=settings.steps, label="codec", unit="step") as bar, metrics:
        for step in range(settings.steps):
            lr = settings.lr * schedule(step, settings.steps)
            x = crops.batch(step)  # (N, C, H, W)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                mean, logvar = net.encode(x)  # (N, Z, h, w) each
                z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)  # (N, Z, h, w)
                kind, z, x = augment(z, x, settings, seed=seed, step=step)
                out = net.decode(z)  # (N, C, H, W)
            kl = 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar).mean()  # per number of a latent
            loss = functional.mse_loss(out, x) + KL_WEIGHT * kl
            losses.append(float(loss.detach()))
            metrics.write(step + 1, loss=losses[-1], lr=lr, **({} if kind == "plain" else {f"loss_{kind}": losses[-1]}))
            if not math.isfinite(losses[-1]):
                raise user_error(
                    f"training of the codec diverged at step {step}",
                    got=f"loss {losses[-1]}",
                    expected="a finite loss",
                    fix=f"lower the codec's `lr` (now {settings.lr}) or check the tiles for outliers",
                )
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step(lr)
            bar.update(1, loss=f"{losses[-1]:.4f}")
    final_losses = losses[-max(1, settings.steps // 10) :]
    return sum(final_losses) / len(final_losses), compute


@torch.no_grad()
def _moments(net: autoencoder.Autoencoder, tiles: Tiles, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation of each channel of sampled latents, (Z,) each."""
    means, variances = [], []
    for x in _images(tiles, rows):
        mean, logvar = net.encode(x)  # (N, Z, h, w) each
        means.append(mean)
        variances.append(logvar.exp().mean(dim=(0, 2, 3)))
    mean = torch.cat(means)  # (N, Z, h, w)
    spread = mean.var(dim=(0, 2, 3), correction=0) + torch.stack(variances).mean(dim=0)  # (Z,)
    return mean.mean(dim=(0, 2, 3)), spread.sqrt().clamp(min=1e-6)


def _images(tiles: Tiles, rows: Rows) -> Iterator[torch.Tensor]:
    """Yield scaled tiles in batches (N, C, H, W)."""
    for start in range(0, len(rows), MEASURED_BATCH):
        yield torch.from_numpy(tiles.scaled(rows[start : start + MEASURED_BATCH]))


@torch.no_grad()
def _reconstruct(net: autoencoder.Autoencoder, tiles: Tiles, rows: Rows, *, linear: bool = False) -> Pairs:
    """Yield tiles and clipped reconstructions, from the posterior's mean or by the linear parts only."""
    for x in _images(tiles, rows):
        yield x, (net.linear(x) if linear else net.decode(net.encode(x)[0])).clamp(-1.0, 1.0)


def _measure(tiles: Tiles, pairs: Pairs) -> dict[str, Any]:
    scaling = BandScaling(tiles.info)
    return measure(pairs, bands=tiles.info["bands"], physical=lambda x: torch.from_numpy(scaling.unscale(x.numpy())))


def _write(net: autoencoder.Autoencoder, tiles: Tiles, folder: Path, *, numbers: dict[str, Any]) -> None:
    """Write all files under temporary names and rename them; codec.json last, to mark the codec as complete."""
    bands = list(tiles.info["bands"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        build = folder / BUILD_FOLDER
        outputs.make_scratch(build)
        try:
            net.save(build)
            identity = f"kl-vae-{autoencoder.autoencoder_digest(build)}"
            codec = KlCodec(net, tiles.info, id=identity, scale=1.0, bands=tuple(bands))
            _draw_images(codec, tiles, build)
            description = {
                "kind": "kl-vae",
                "id": identity,
                "in_bands": len(bands),
                "bands": bands,
                "latent_channels": codec.latent_channels,
                "downsampling_factor": codec.downsampling_factor,
                "sha256": sha256_file(build / autoencoder.WEIGHTS_FILE),
                "numbers": numbers,
            }
            (build / CODEC_FILE).write_text(json.dumps(description, indent=1) + "\n")
            for name in FILES:
                with atomic_replace(folder / name) as temporary:
                    (build / name).replace(temporary)
        finally:
            outputs.remove(build)
    except OSError as error:
        raise unwritten("the codec", folder, error) from error


def _draw_images(codec: KlCodec, tiles: Tiles, folder: Path) -> None:
    """Draw validation (or train) tiles above their reconstructions, and all bands of the first tile in gray."""
    rows = (tiles.rows("val") if len(tiles.rows("val")) else tiles.rows("train"))[:DRAWN_TILES]
    x = codec.input(tiles, rows)  # (N, C, H, W)
    decoded = codec.decode(codec.encode(x)[0] * codec.scale)  # (N, C, H, W)
    # (3, H, N W) each
    lines = [np.concatenate(list(images), axis=2) for images in (tiles.rgb(rows), codec.to_rgb(decoded))]
    write_png(folder / GRID_FILE, np.concatenate(lines, axis=1).transpose(1, 2, 0))  # (2 H, N W, 3)
    both = torch.stack([x[0], decoded[0]]).clamp(-1.0, 1.0)  # (2, C, H, W)
    gray = both.add(1.0).mul(127.5).round().to(torch.uint8).numpy()
    panel = np.concatenate([np.concatenate(list(bands), axis=1) for bands in gray])  # (2 H, C W)
    write_png(folder / BANDS_FILE, np.repeat(panel[:, :, None], 3, axis=2))
