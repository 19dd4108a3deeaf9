"""Image sets of `dithc features`: real tiles or generated images, as bytes of three bands and as stored.

Legend: n images, C bands, H, W image.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dithc.config import ExperimentConfig
from dithc.core.artifacts import Manifest, digest
from dithc.core.logging import UserError, get_logger, user_error
from dithc.data import BandScaling, Rows, Tiles, products
from dithc.data.export import GeneratedImages
from dithc.evaluate import ImageSet

Array = NDArray[Any]
Split = Literal["train", "val", "test", "all"]
NOT_COUNTED = (0, 0)
log = get_logger("dithc.features")


@dataclass(frozen=True, kw_only=True)
class PhysicalImages:
    """Images in the units of their dataset.

    `physical` and `stored` map image numbers to physical values and to integers of the dataset (n, C, H, W). `whole` are
    the ascending numbers of images without missing pixels; None for all, as for generated images.
    """

    bands: products.Bands
    scaling: BandScaling
    physical: Callable[[Rows], Array]
    stored: Callable[[Rows], Array]
    labels: Array
    whole: Rows | None = None

    def levels(self, rows: Rows, *, bands: list[int] | None = None) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        """Return the bands of the display, or others from their low to their high, as bytes; clipped and all pixels."""
        values = self.physical(rows)[:, list(self.bands.shown) if bands is None else bands]
        rgb, clipped = self.scaling.levels(values, bands=bands)
        return rgb, (clipped, rgb[:, 0].size)

    def without_gaps(self) -> "PhysicalImages":
        """Return the images without missing pixels, whose stored values are no measurements; UserError without any."""
        if self.whole is None:
            return self
        whole = self.whole
        if not len(whole):
            raise user_error(
                "bands, indices and spectra cannot be measured",
                got=f"{len(self.labels)} tiles, each with pixels without data",
                expected="tiles without missing pixels",
                fix="use smaller tiles or another split, or remove `bands`, `indices` and `spectra` from `metrics`",
            )
        log.info(f"{len(self.labels) - len(whole)} of {len(self.labels)} tiles have pixels without data: skipping them")
        return replace(
            self,
            physical=lambda numbers: self.physical(whole[numbers]),
            stored=lambda numbers: self.stored(whole[numbers]),
            labels=self.labels[whole],
            whole=None,
        )


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Set of images of a manifest: as displayed, and their pixels, or the reason for the absence of pixels in `reason`."""

    path: Path
    manifest: Manifest
    displayed: ImageSet
    pixels: PhysicalImages | None
    reason: str = ""

    def shown(self, triplet: str | None = None) -> ImageSet:
        """Return the images as displayed, or three other bands, each stretched from its low to its high."""
        if triplet is None:
            return self.displayed
        pixels, names = self.needed, triplet.split("+")
        if len(names) != 3 or not set(names) <= set(pixels.bands.names):
            expected = f"three of {', '.join(pixels.bands.names)}, with + between them"
            fix = "pass bands of the dataset, such as B12+B11+B04"
            raise user_error("--band-triplet", got=triplet, expected=expected, fix=fix)
        indices = [pixels.bands.names.index(name) for name in names]

        low, high = pixels.scaling.ends(indices)
        display = digest({"bands": names, "low": low, "high": high})
        set_hash = digest([self.displayed.set_hash, display])
        return replace(
            self.displayed, set_hash=set_hash, rendering_digest=display, read=partial(pixels.levels, bands=indices)
        )

    @property
    def needed(self) -> PhysicalImages:
        """Physical values of the images; UserError if they are not available."""
        if self.pixels is None:
            expected = "generated images, and the tiles listed in their manifest"
            fix = "rerun `dithc tiles` and `dithc sample`, or remove --pixel-statistics and --band-triplet"
            raise user_error(f"bands of {self.path} cannot be measured", got=self.reason, expected=expected, fix=fix)
        return self.pixels


def open_source(args: argparse.Namespace, experiment: ExperimentConfig) -> ImageSource:
    """Open the requested images; UserError if they do not exist, or there are fewer than requested."""
    if args.tiles:
        return _of_tiles(args.tiles, Manifest.read(args.tiles, stage="tiles"), args, experiment)
    return _of_samples(args.samples, Manifest.read(args.samples, stage="sample"), experiment)


def _of_tiles(path: Path, manifest: Manifest, args: argparse.Namespace, experiment: ExperimentConfig) -> ImageSource:
    tiles = Tiles(path.parent)
    rows = _selected_rows(tiles, args.split, args.num_images, seed=experiment.seed)
    display, accepted = digest(tiles.info["display"]), tiles.accepted("tile_id", "valid_frac")
    ids, is_whole = accepted["tile_id"], np.array(accepted["valid_frac"])[rows] == 1.0
    pixels = PhysicalImages(
        bands=_with_wavelengths(products.Bands.of(tiles.info), experiment, manifest.name),
        scaling=tiles.stretch,
        physical=lambda numbers: tiles.stretch.physical(tiles.stored(rows[numbers])),
        stored=lambda numbers: tiles.stored(rows[numbers]),
        labels=tiles.labels[rows],
        whole=None if is_whole.all() else np.flatnonzero(is_whole),
    )
    displayed = ImageSet(
        total=len(rows),
        set_hash=digest([manifest.digest, display, args.split, args.num_images]),
        rendering_digest=display,
        read=pixels.levels,
        ids=[ids[row] for row in rows],
    )
    return ImageSource(path=path, manifest=manifest, displayed=displayed, pixels=pixels)


def _selected_rows(tiles: Tiles, split: Split, images: str, *, seed: int) -> Rows:
    rows = tiles.rows(split)
    if images == "all":
        return rows
    if not images.isdigit() or not 2 <= int(images) <= len(rows):
        got = f"--num-images {images} of {len(rows)} tiles"
        fix = "lower `num_real_images` of the evaluation, or use another split"
        raise user_error("number of real images", got=got, expected=f"`all`, or 2 to {len(rows)}", fix=fix)
    return tiles.drawn(split, int(images), seed=seed)


def _of_samples(path: Path, manifest: Manifest, experiment: ExperimentConfig) -> ImageSource:
    names = [entry["path"] for entry in manifest.files if Path(entry["path"]).name.startswith("rgb-")]
    arrays = [products.open_npy(path.parent / name) for name in names]
    starts = np.cumsum([0, *map(len, arrays)])
    total, display = int(manifest.summary["images"]), manifest.summary["rendering_digest"]
    if starts[-1] != total:
        got, expected = (f"{count} images" for count in (starts[-1], total))
        raise user_error(f"images of {path} are missing", got=got, expected=expected, fix="rerun `dithc sample`")
    pixels, reason = _pixels_of_samples(path, manifest, experiment)

    def read(numbers: Rows) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        shards = np.searchsorted(starts, numbers, side="right") - 1
        for shard in np.unique(shards):
            Manifest.verified(path.parent / names[shard])
        rgb = np.stack([arrays[shard][number - starts[shard]] for shard, number in zip(shards, numbers, strict=True)])
        return rgb, NOT_COUNTED if pixels is None else pixels.levels(numbers)[1]

    displayed = ImageSet(
        total=total,
        set_hash=digest([manifest.digest, display]),
        rendering_digest=display,
        read=read,
        ids=[{"seed": manifest.summary.get("seed"), "image": number} for number in range(total)],
    )
    return ImageSource(path=path, manifest=manifest, displayed=displayed, pixels=pixels, reason=reason)


def _pixels_of_samples(
    path: Path, manifest: Manifest, experiment: ExperimentConfig
) -> tuple[PhysicalImages | None, str]:
    """Return the physical values of generated images, or None and the reason, which is logged."""
    try:
        generated = GeneratedImages(path)
    except UserError as error:
        log.warning(f"not counting clipped pixels of {path}: {error}")
        return None, str(error)
    evaluation = experiment.evaluations.get(manifest.name)
    dataset = experiment.runs[evaluation.run].dataset if evaluation is not None else ""
    return PhysicalImages(
        bands=_with_wavelengths(generated.bands, experiment, dataset),
        scaling=generated.stretch,
        physical=generated.physical,
        stored=lambda numbers: generated.bands.stored(generated.physical(numbers))[0],
        labels=generated.labels,
    ), ""


def _with_wavelengths(bands: products.Bands, experiment: ExperimentConfig, dataset: str) -> products.Bands:
    settings = experiment.datasets.get(dataset)
    wavelengths = getattr(settings.source, "wavelengths_nm", None) if settings is not None else None
    if wavelengths is None or len(wavelengths) != len(bands.names):
        return bands
    return replace(bands, wavelengths_nm=tuple(wavelengths))
