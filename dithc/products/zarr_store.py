"""Zarr store of images that xarray opens with decoded values. Only this module imports zarr, an optional dependency.

Legend: N images, C bands, H, W image.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dithc.data import products
from dithc.log import problem

IMAGES_PER_CHUNK = 16
DIMS = ("image", "band", "y", "x")
NO_PLACE = (float("nan"),) * 6


def require_zarr() -> None:
    """Raise UserError if zarr is not installed."""
    if find_spec("zarr") is None:
        raise problem(
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
    case. Tags of single images become coordinates along `image`.

    Args:
        store: New folder.
        images: All images, in order.
        bands: Bands of the images.
        shape: (N, C, H, W).
        tags: Common tags of all images.
    """
    import zarr

    group = zarr.create_group(store, attributes=tags)
    chunks = (min(IMAGES_PER_CHUNK, shape[0]), *shape[1:])
    coordinates: dict[str, list[Any]] = {}
    target = _array(group, "images", shape=shape, chunks=chunks, dtype=bands.dtype, dims=DIMS, fill=bands.nodata or 0)
    valid = None
    if bands.nodata is None:
        valid = _array(
            group,
            "valid",
            shape=(shape[0], *shape[2:]),
            chunks=(chunks[0], *shape[2:]),
            dtype="uint8",
            dims=("image", "y", "x"),
            fill=1,
        )
    block: list[products.Image] = []
    done = 0
    for image in images:
        block.append(image)
        for name, value in _said(image, tags).items():
            coordinates.setdefault(name, []).append(value)
        if len(block) == chunks[0] or done + len(block) == shape[0]:
            here = slice(done, done + len(block))
            target[here] = np.stack([products.marked(one, bands=bands) for one in block])
            if valid is not None:
                target_valid = [np.ones(shape[2:], bool) if one.valid is None else one.valid for one in block]
                valid[here] = np.stack(target_valid).astype(np.uint8)
            done, block = done + len(block), []
    _finish(group, target, bands, coordinates)
    return sorted(path for path in store.rglob("*") if path.is_file())


def _array(
    group: Any, name: str, *, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, dims: Any, fill: Any
) -> Any:
    return group.create_array(name, shape=shape, chunks=chunks, dtype=dtype, fill_value=fill, dimension_names=dims)


def _said(image: products.Image, tags: dict[str, str]) -> dict[str, Any]:
    """Return the tags and the place of one image, without the common tags."""
    own = {name.removeprefix("DITHC_").lower(): value for name, value in image.tags.items() if name not in tags}
    place = {"crs": image.crs or "", "transform": image.transform or NO_PLACE}
    return {"image": int(own.pop("index")), "label": int(own.pop("label")), **own, **place}


def _finish(group: Any, target: Any, bands: products.Bands, coordinates: dict[str, list[Any]]) -> None:
    """Write the coordinates, and the attributes that list them."""
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
