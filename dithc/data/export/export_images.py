"""Export of the images of a manifest: a folder of GeoTIFF files with a manifest."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage
from typing import Any, Literal

import numpy as np

from dithc.core.artifacts import Manifest, outputs
from dithc.core.logging import get_logger, progress, unwritten, user_error
from dithc.data import products
from dithc.data.export.images import Clipped, GeneratedImageExport, RealTiles

Stage = Literal["sample", "tiles"]
OVERVIEWS = 4 / 3  # bytes of an image with all overviews, divided by bytes of the image
log = get_logger(__name__)


def export_images(manifest: Path, *, stage: Stage, out: Path, select: str = ":") -> dict[str, Any]:
    """Export the images of a manifest in the integer type of their dataset, one cloud-optimized GeoTIFF file per image.

    Args:
        manifest: Manifest of the images.
        stage: Stage of the manifest: generated images (`sample`) or real tiles (`tiles`).
        out: Output folder. An earlier export is replaced on success and unchanged otherwise.
        select: `FIRST:END` of the images; both are optional.

    Returns:
        The numbers of the new manifest.

    Raises:
        UserError: `select` selects no image, the inputs of the manifest are not found, `out` holds other files, or
            the disk is full.
    """
    start = time.monotonic()
    images: GeneratedImageExport | RealTiles = (
        GeneratedImageExport(manifest) if stage == "sample" else RealTiles(manifest)
    )
    source = images.manifest
    indices = _select_images(select, len(images.labels))
    if images.are_scenes:
        _check_scenes(images, len(indices), out=out)
    try:
        with outputs.OutputFolder(out).replaced(stage="export", name=source.name) as folder:
            clipped: Clipped = np.zeros(len(images.bands.names), np.int64)
            stream = _monitor(images.images(indices), clipped, len(indices))
            paths = [products.write_geotiff(folder, image, bands=images.bands) for image in stream]
            numbers = {
                "images": len(indices),
                "first": indices[0],
                "bands": list(images.bands.names),
                "values": len(indices) * int(np.prod(images.shape[1:])),
                "clipped": dict(zip(images.bands.names, map(int, clipped), strict=True)),
            }
            Manifest(
                stage="export",
                name=source.name,
                spec={"first": indices[0], "images": len(indices)},
                summary=numbers,
                files=Manifest.entries(folder, paths),
                inputs={str(manifest): source.digest},
                wall_seconds=round(time.monotonic() - start, 3),
            ).write(folder / "manifest.json")
    except OSError as error:
        fix = "free space or choose another --out, then rerun the command"
        raise unwritten("images", out, error, kept="an earlier export is unchanged", fix=fix) from error
    _report(numbers, images.bands, out)
    return numbers


def _check_scenes(images: GeneratedImageExport | RealTiles, count: int, *, out: Path) -> None:
    needed = int(np.prod(images.shape[1:])) * np.dtype(images.bands.dtype).itemsize
    # Assume that compression fails, and that one image exists twice while its overviews are built.
    needed = int(needed * (OVERVIEWS * count + OVERVIEWS))
    free = disk_usage(next(place for place in [out, *out.absolute().parents] if place.exists())).free
    if needed > free:
        raise user_error(
            f"{count} scene(s) of {' x '.join(map(str, images.shape[1:]))} are larger than the disk of {out}",
            got=f"{free / 1e9:.2f} GB free",
            expected=f"up to {needed / 1e9:.2f} GB, with overviews and one uncompressed scene",
            fix="free space, choose another --out, or select fewer scenes with --select",
        )


def _select_images(select: str, count: int) -> range:
    """Return the numbers of the images in `FIRST:END`."""
    first, colon, end = select.partition(":")
    if colon and all(not side or side.isdigit() for side in (first, end)):
        indices = range(int(first or 0), int(end or count))
        if indices and indices.stop <= count:
            return indices
    raise user_error(
        "--select selects no images",
        got=select,
        expected=f"FIRST:END within 0:{count}, without END itself",
        fix=f"use a range such as 0:{min(count, 100)}",
    )


def _monitor(images: Iterator[tuple[products.Image, Clipped]], total: Clipped, count: int) -> Iterator[products.Image]:
    """Yield images with a progress bar, and add their clipped values per band to `total`."""
    with progress(total=count, label="export", unit="image") as bar:
        for image, clipped in images:
            yield image
            total += clipped  # complete only after the consumer has written all rows
            bar.update(1)


def _report(numbers: dict[str, Any], bands: products.Bands, out: Path) -> None:
    clipped = Counter(numbers["clipped"])
    summary = f"{numbers['images']} images in {out} ({bands.dtype}, {bands.units or 'no units'})"
    if not clipped.total():
        log.info(f"{summary}; no values were clipped")
        return
    worst = ", ".join(f"{band} {count}" for band, count in clipped.most_common(3) if count)
    share = clipped.total() / numbers["values"]
    log.warning(
        f"{summary}; {clipped.total()} values ({share:.2g} of all) are beyond {bands.dtype} and were clipped: {worst}"
    )
