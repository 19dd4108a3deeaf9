"""Zarr store of images that xarray opens with decoded values. Only this module imports zarr, an optional dependency.

Legend: N images, C bands, H, W image.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dithc.core.logging import user_error
from dithc.data import products

IMAGES_PER_CHUNK = 16
DIMS = ("image", "band", "y", "x")
NO_PLACE = (float("nan"),) * 6


def require_zarr() -> None:
    if find_spec("zarr") is None:
        raise user_error(
            "zarr is not installed",
            got="--format zarr without this package",
            expected="zarr 3 or later",
            fix="pip install 'dithc[zarr]', or use --format geotiff",
        )


def write_zarr(
    store: Path,
    images: Iterable[products.Image],
    *,
    bands: products.Bands,
    shape: tuple[int, int, int, int],
    tags: dict[str, str],
) -> list[Path]:
    """Write images in zarr format 3 and return the files of the store.

    At most `IMAGES_PER_CHUNK` images are in memory. The array `images` (N, C, H, W) contains stored integers. Scale,
    offset and no-data value are CF attributes if all bands share them, and arrays by band (`scale`, `offset`) in any
    case. Tags of single images become coordinates along `image`; `tags` are common to all images.
    """
    import zarr

    group = zarr.create_group(store, attributes=tags)
    chunks = (min(IMAGES_PER_CHUNK, shape[0]), *shape[1:])
    coordinates: dict[str, list[Any]] = {}
    target = group.create_array(
        "images", shape=shape, chunks=chunks, dtype=bands.dtype, fill_value=bands.nodata or 0, dimension_names=DIMS
    )
    valid = None
    if bands.nodata is None:
        places = {"shape": (shape[0], *shape[2:]), "chunks": (chunks[0], *shape[2:])}
        valid = group.create_array("valid", **places, dtype="uint8", fill_value=1, dimension_names=("image", "y", "x"))
    block: list[products.Image] = []
    start = 0
    for image in images:
        block.append(image)
        for name, value in _image_coordinates(image, tags).items():
            coordinates.setdefault(name, []).append(value)
        if len(block) == chunks[0] or start + len(block) == shape[0]:
            rows = slice(start, start + len(block))
            target[rows] = np.stack([products.marked(item, bands=bands) for item in block])
            if valid is not None:
                valid[rows] = np.stack([np.ones(shape[2:]) if item.valid is None else item.valid for item in block])
            start, block = start + len(block), []
    _write_coordinates(group, target, bands, coordinates)
    return sorted(path for path in store.rglob("*") if path.is_file())


def _image_coordinates(image: products.Image, tags: dict[str, str]) -> dict[str, Any]:
    """Return the tags and the place of one image, without the common tags."""
    image_tags = {name.removeprefix("DITHC_").lower(): value for name, value in image.tags.items() if name not in tags}
    place = {"crs": image.crs or "", "transform": image.transform or NO_PLACE}
    return {"image": int(image_tags.pop("index")), "label": int(image_tags.pop("label")), **image_tags, **place}


def _write_coordinates(group: Any, target: Any, bands: products.Bands, coordinates: dict[str, list[Any]]) -> None:
    if not any(coordinates["crs"]):
        del coordinates["crs"], coordinates["transform"]
    columns: dict[str, tuple[tuple[str, ...], Any]] = {
        name: (("image",) if name != "transform" else ("image", "affine"), np.array(values))
        for name, values in coordinates.items()
    }
    columns |= {"band": (("band",), np.array(bands.names)), "scale": (("band",), np.array(bands.scale))}
    columns |= {"offset": (("band",), np.array(bands.offset))}
    columns |= {"wavelength_nm": (("band",), np.array([np.nan if nm is None else nm for nm in bands.wavelengths_nm]))}
    for name, (dims, values) in columns.items():
        dtype = str if values.dtype.kind == "U" else values.dtype
        group.create_array(name, shape=values.shape, dtype=dtype, dimension_names=dims)[...] = values
    attributes: dict[str, Any] = {"units": bands.units, "coordinates": " ".join(set(columns) - {"image", "band"})}
    if len(set(bands.scale)) == len(set(bands.offset)) == 1:
        attributes |= {"scale_factor": bands.scale[0], "add_offset": bands.offset[0]}
    if bands.nodata is not None:
        attributes["_FillValue"] = bands.nodata
    target.attrs.update(attributes)
