"""Measurement of pixel statistics of multispectral images: distributions of bands and indices, sums, radial spectra.

Statistics use the stored integers of the dataset, to which generated images are rounded. Sums are therefore exact and
independent of the number of ranks.

Legend: n images, C bands, H, W image; L classes, V stored values, I indices, R rings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dithc.core.logging import progress
from dithc.data import products
from dithc.evaluate.image_set import share
from dithc.evaluate.memorization import Rows, evenly
from dithc.evaluate.pixels.band_roles import INDICES, index_bands
from dithc.evaluate.pixels.pixel_file import BINS, FILE, PixelStatistics, is_of, write
from dithc.evaluate.pixels.spectra import radial_power

if TYPE_CHECKING:
    from dithc.engine.comm import Group

BATCH = 16  # images read together: 100 MB of floating-point numbers with 13 bands and 256 pixels
Array = NDArray[Any]


def measure_pixels(
    stored: Callable[[Rows], Array],
    labels: NDArray[np.integer],
    out_folder: Path,
    *,
    bands: products.Bands,
    set_hash: str,
    group: "Group",
) -> None:
    """Write pixel statistics of a set of images to `pixels.npz`, unless it exists for this `set_hash`.

    `stored` returns integers (n, C, H, W) by image numbers, described by `bands`. `labels` (n,) are classes. The ranks
    of `group` share the work.
    """
    identity = {"set_hash": set_hash, "bands": list(bands.names), "wavelengths_nm": list(bands.wavelengths_nm)}
    if group.broadcast_object(group.rank == 0 and is_of(out_folder / FILE, identity)):
        return
    sums, rows = _Sums(bands, np.unique(labels).astype(np.int64)), np.arange(len(labels))
    of_spectra = set(evenly(rows).tolist())
    with progress(total=len(labels), label="pixels", unit="image", quiet=group.rank > 0) as bar:
        for part in share(rows, batch=BATCH, group=group):
            for number, image in zip(part, stored(part), strict=True):
                sums.add(image, int(labels[number]), spectrum_of=int(number) if number in of_spectra else None)
            bar.update(len(part))
        for other in group.gather_objects(sums)[1:] if group.size > 1 else []:
            if group.rank == 0:
                sums.join(other)
        bar.update(len(labels) - bar.done)
    if group.rank == 0:
        write(out_folder / FILE, sums.result(), identity)
    group.barrier()


class _Sums:
    """Sums over images, by bands and ascending classes (L,)."""

    def __init__(self, bands: products.Bands, classes: NDArray[np.int64]) -> None:
        limits, count = np.iinfo(bands.dtype), len(bands.names)
        self.bands, self.classes = bands, classes
        self.counts = np.zeros((count, int(limits.max) - int(limits.min) + 1), np.int64)  # (C, V)
        self.class_pixels = np.zeros(len(classes), np.int64)  # (L,)
        self.class_sums = np.zeros((len(classes), count), np.int64)  # (L, C)
        # Sums of products of two bands (C, C) in unbounded Python integers.
        self.cross: Array = np.zeros((count, count), np.int64).astype(object)
        self.indices = np.zeros((len(INDICES), BINS), np.int64)  # (I, BINS)
        self.undefined = np.zeros(len(INDICES), np.int64)  # (I,)
        self.power: dict[int, Array] = {}  # (C, R) by number of the image

    def add(self, image: Array, label: int, *, spectrum_of: int | None) -> None:
        """Add an image (C, H, W) and its spectrum as image `spectrum_of`; None omits the spectrum."""
        low = int(np.iinfo(self.bands.dtype).min)
        flat = image.reshape(len(image), -1)  # (C, pixels)
        for band, values in enumerate(flat):
            self.counts[band] += np.bincount(values.astype(np.int64) - low, minlength=self.counts.shape[1])
        row = int(np.searchsorted(self.classes, label))
        self.class_pixels[row] += flat.shape[1]
        self.class_sums[row] += flat.sum(axis=1, dtype=np.int64)
        exact = flat.astype(np.float64)  # sums of products of one image are integers below 2^53
        self.cross += (exact @ exact.T).astype(np.int64).astype(object)
        physical = self.bands.physical(image)  # (C, H, W)
        for number, (name, _) in enumerate(INDICES.items()):
            self._add_index(number, physical, index_bands(name, self.bands))
        if spectrum_of is not None:
            self.power[spectrum_of] = radial_power(physical)

    def _add_index(self, number: int, physical: Array, pair: tuple[int, int] | None) -> None:
        if pair is None:
            return
        first, second = (physical[band].astype(np.float64) for band in pair)
        total = first + second
        is_known = total > 0  # a negative reflectance is an artifact of calibration
        values = (first[is_known] - second[is_known]) / total[is_known]
        bins = np.clip(np.floor((values + 1) / 2 * BINS), 0, BINS - 1).astype(np.int64)
        self.indices[number] += np.bincount(bins, minlength=BINS)
        self.undefined[number] += int((~is_known).sum())

    def join(self, other: "_Sums") -> None:
        """Add the sums of another rank."""
        for name in ("counts", "class_pixels", "class_sums", "cross", "indices", "undefined"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.power |= other.power

    def result(self) -> PixelStatistics:
        used = np.flatnonzero(self.counts.any(axis=0))
        has_bands = [index_bands(name, self.bands) is not None for name in INDICES]
        return PixelStatistics(
            bands=self.bands.names,
            units=self.bands.units,
            scale=np.array(self.bands.scale),
            offset=np.array(self.bands.offset),
            first=int(np.iinfo(self.bands.dtype).min) + int(used[0]),
            counts=self.counts[:, used[0] : used[-1] + 1],
            classes=self.classes,
            class_pixels=self.class_pixels,
            class_sums=self.class_sums,
            products=self.cross.astype(np.float64),
            index_names=tuple(name for name, is_known in zip(INDICES, has_bands, strict=True) if is_known),
            indices=self.indices[has_bands],
            undefined=self.undefined[has_bands],
            power=np.mean([self.power[number] for number in sorted(self.power)], axis=0),
            spectra=len(self.power),
        )
