"""Images of a manifest written for other programs: a folder of GeoTIFF files, or one zarr store, with a manifest."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import disk_usage
from typing import Any, Literal

import numpy as np

from dithc.data import products
from dithc.log import logger, problem, progress
from dithc.products.images import RealTiles, Samples
from dithc.products.zarr_store import require_zarr, write_zarr
from dithc.runs import Manifest, outputs

Stage = Literal["sample", "tiles"]
Format = Literal["geotiff", "zarr"]
STORE = "images.zarr"
OVERVIEWS = 4 / 3  # of the bytes of an image, with all of its overviews
log = logger(__name__)


def write(manifest: Path, *, stage: Stage, layout: Format, out: Path, select: str = ":") -> dict[str, Any]:
    """Writes the images of a manifest, in the integers that their data set is stored in, into a new folder.

    Args:
        manifest: of the images.
        stage: that it is of: generated images (`sample`) or real tiles (`tiles`).
        layout: `geotiff`: a cloud-optimised file for each image; `zarr`: one store, images.zarr.
        out: folder to make; one that an earlier call made is replaced when all is well, and untouched otherwise.
        select: `FIRST:END` of the images, either may be left out.

    Returns:
        The numbers of the manifest that is written with them.

    Raises:
        UserError: `select` names no image, what the images were made from is not found, `out` holds other files, zarr is not
            installed, or the disk is full.
    """
    begun = time.monotonic()
    images: Samples | RealTiles = Samples(manifest) if stage == "sample" else RealTiles(manifest)
    if layout == "zarr" and not images.are_scenes:
        require_zarr()
    source = images.manifest
    chosen = _chosen(select, len(images.labels))
    if images.are_scenes:
        _check_scenes(images, len(chosen), layout=layout, out=out)
    try:
        with outputs.OutputFolder(out).replaced(stage="export", name=source.name) as folder:
            counter = _Counter(images.images(chosen), total=len(chosen))
            if layout == "geotiff":
                paths = [products.write_geotiff(folder, image, bands=images.bands) for image in counter]
            else:
                shape = (len(chosen), *images.shape)
                paths = write_zarr(folder / STORE, counter, bands=images.bands, shape=shape, tags=images.tags)
            numbers = {
                "images": len(chosen),
                "first": chosen[0],
                "format": layout,
                "bands": list(images.bands.names),
                "values": len(chosen) * int(np.prod(images.shape)),
                "clipped": dict(zip(images.bands.names, map(int, counter.clipped), strict=True)),
            }
            Manifest(
                stage="export",
                name=source.name,
                spec={"format": layout, "first": chosen[0], "images": len(chosen)},
                numbers=numbers,
                files=Manifest.entries(folder, paths),
                inputs={str(manifest): source.digest},
                seconds=round(time.monotonic() - begun, 3),
            ).write(folder / "manifest.json")
    except OSError as error:
        raise problem(
            f"images could not be written to {out}",
            got=error,
            expected="a writable place with room for them; what was there before is untouched",
            fix="free space or choose another --out, then start again",
        ) from error
    _tell(numbers, images.bands, out)
    return numbers


def _check_scenes(images: Samples | RealTiles, count: int, *, layout: Format, out: Path) -> None:
    """Refuses scenes in a format that has no rows, and those for which the disk has no room."""
    if layout != "geotiff":
        raise problem(
            "scenes are written by rows",
            got=f"--format {layout}",
            expected="--format geotiff",
            fix="export GeoTIFF: GDAL and xarray (rioxarray) open parts of it",
        )
    needed = int(np.prod(images.shape)) * np.dtype(images.bands.dtype).itemsize
    # All of them with overviews as if they could not be packed, one beside as it is while it is made.
    needed = int(needed * (OVERVIEWS * count + OVERVIEWS))
    free = disk_usage(next(place for place in [out, *out.absolute().parents] if place.exists())).free
    if needed > free:
        raise problem(
            f"{count} scene(s) of {' x '.join(map(str, images.shape))} are larger than the disk of {out}",
            got=f"{free / 1e9:.2f} GB free",
            expected=f"{needed / 1e9:.2f} GB at most, with overviews and one scene that is not packed",
            fix="free space, choose another --out, or fewer by --select",
        )


def _chosen(select: str, count: int) -> range:
    """The numbers of the images that `FIRST:END` names."""
    first, colon, end = select.partition(":")
    if colon and all(not side or side.isdigit() for side in (first, end)):
        chosen = range(int(first or 0), int(end or count))
        if chosen and chosen.stop <= count:
            return chosen
    raise problem(
        "--select names no images",
        got=select,
        expected=f"FIRST:END within 0:{count}; END itself is left out",
        fix=f"such as 0:{min(count, 100)}",
    )


class _Counter:
    """Passes images on with a bar of progress, and counts what was clipped of each band."""

    def __init__(self, images: Iterable[tuple[products.Image, Any]], *, total: int) -> None:
        self._images, self._total, self.clipped = images, total, np.zeros(1, np.int64)

    def __iter__(self) -> Iterator[products.Image]:
        with progress(total=self._total, label="export", unit="image") as bar:
            for image, clipped in self._images:
                yield image
                self.clipped = self.clipped + clipped  # of an image by rows known when it is written
                bar.update(1)


def _tell(numbers: dict[str, Any], bands: products.Bands, out: Path) -> None:
    clipped = Counter(numbers["clipped"])
    said = f"{numbers['images']} images in {out} ({numbers['format']}, {bands.dtype}, {bands.units or 'no units'})"
    if not clipped.total():
        log.info(f"{said}; nothing was clipped")
        return
    worst = ", ".join(f"{band} {count}" for band, count in clipped.most_common(3) if count)
    share = clipped.total() / numbers["values"]
    log.warning(
        f"{said}; {clipped.total()} values ({share:.2g} of all) are beyond {bands.dtype} and were clipped: {worst}"
    )
