"""Output of a stage as an xarray.DataArray.

Legend: N images, C bands, H, W image; Z latent channels, h, w latent.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray

from dithc.core.artifacts import Manifest
from dithc.core.logging import get_logger, user_error
from dithc.data import Rows, Tiles, products
from dithc.data.export.find_inputs import find_input
from dithc.data.export.generated import GeneratedImages
from dithc.data.export.images import tile_places
from dithc.data.export.lazy_arrays import variable
from dithc.data.export.open_restoration import open_restoration
from dithc.data.export.shards import ConcatenatedArrays, Key, Read, shard_paths, taken

Array = npt.NDArray[Any]
IMAGE_DIMS = ("image", "band", "y", "x")
ATTRS = (
    "weights_description",
    "run",
    "checkpoint",
    "step",
    "seed",
    "codec",
    "extractor",
    "kind",
    "resize",
    "sha256",
    "split",
)
log = get_logger(__name__)


class StageArrays(NamedTuple):
    """Array of a stage, its coordinates and its attributes."""

    array: xarray.Variable
    coordinates: dict[str, Any]
    attributes: dict[str, Any]


Opener = Callable[[Path, Manifest, int | None], StageArrays]


def open_stage(
    manifest: Path | str, *, image: int | None = None, latents: Opener | None = None
) -> xarray.DataArray | xarray.Dataset:
    """Open the output of a stage. Pixels are read from disk on access.

    Args:
        manifest: Manifest of the stage `stage` (scenes), `tiles`, `latents`, `sample`, `features` or `restore`, or its folder.
        image: Number of a single image to open. Required if the scenes have different shapes. A georeferenced image has
            coordinates `y` and `x` of its pixel centers.
        latents: Opens the output of the stage `latents`, whose package is above this package.

    Returns:
        Scenes, tiles and samples: (image, band, y, x) float32 in the units of the dataset, with the names of the bands.
        Latents: (image, moment, channel, y, x) float16, unscaled, without augmentation. Features: (image, feature)
        float32. Coordinates along `image` are `label` and similar columns. Scenes have a `mask` (0 no data, 1 valid, 2
        cloud). Scenes and tiles have `crs`, and in its units the outer corner (`left`, `top`) and the pixel size (`dx`,
        `dy`); grids are never rotated. Attributes: stage, name,
        digest, units, and values of the manifest. Restorations: an xarray.Dataset, see `open_restoration`.

    Raises:
        UserError: The manifest or image does not exist, a file is damaged, the stage has no arrays, or the dataset of
            the samples is not found.
    """
    path = Path(manifest) / "manifest.json" if Path(manifest).is_dir() else Path(manifest)
    if image is not None and not isinstance(image, int | np.integer):
        raise user_error(
            f"image of {path}", got=repr(image), expected="a number", fix="pass image=0 for the first image"
        )
    folder = path.parent if path.suffix == ".json" else path
    if not folder.exists():
        others = ", ".join(sorted(found.parent.name for found in folder.parent.glob("*/manifest.json"))) or "none"
        fix = "open one of them, or run the stage"
        raise user_error(
            f"{folder} is missing", got="no such folder", expected=f"in {folder.parent}: {others}", fix=fix
        )
    content = Manifest.read(path)
    if content.stage == "restore":
        return open_restoration(path, content, image)
    stages = OPENERS | ({"latents": latents} if latents else {})
    if content.stage not in stages:
        got, expected = f"stage {content.stage!r}", ", ".join([*stages, "restore"])
        raise user_error(f"{path} has no arrays", got=got, expected=expected, fix="open the manifest of another stage")
    opened = stages[content.stage](path, content, image)
    values = {name: content.summary[name] for name in ATTRS if content.summary.get(name) is not None}
    attributes = {"stage": content.stage, "name": content.name, "digest": content.digest} | values | opened.attributes
    coordinates = {"image": np.arange(opened.array.shape[0]), **opened.coordinates}
    array = xarray.Dataset({content.stage: opened.array}, coords=coordinates)[content.stage]
    array.attrs = attributes
    return array if image is None else _select_image(array, image, path)


def _select_image(array: xarray.DataArray, image: int, path: Path) -> xarray.DataArray:
    numbers = array.coords["image"].values
    if image not in numbers:
        expected = f"0 to {numbers.max(initial=0)}"
        raise user_error(f"{path} has no image {image}", got=image, expected=expected, fix="choose another number")
    pixels = array.sel(image=image)
    if "dx" in pixels.coords and np.isfinite(pixels.coords["dx"]):
        left, top, dx, dy = (float(pixels.coords[name]) for name in ("left", "top", "dx", "dy"))
        x, y = left + dx * (np.arange(pixels.sizes["x"]) + 0.5), top + dy * (np.arange(pixels.sizes["y"]) + 0.5)
        pixels = pixels.assign_coords(x=x, y=y)
    return pixels


def _scene_pixels(path: Path, _: Manifest, first: int) -> Read:
    scenes = products.Scenes(path.parent)
    bands = products.Bands.of(scenes.index)

    def pixels(rows: Rows, keys: tuple[Key, ...]) -> Array:
        band, *window = keys
        stored = [taken(scenes.pixels_of(first + row)[None], (slice(None), *window)) for row in rows]
        return taken(bands.physical(np.concatenate(stored)), (band,))

    return pixels


def _scene_masks(path: Path, _: Manifest, first: int) -> Read:
    scenes = products.Scenes(path.parent)
    return lambda rows, keys: np.concatenate([taken(scenes.mask_of(first + row)[None], keys) for row in rows])


def _scenes(path: Path, manifest: Manifest, image: int | None) -> StageArrays:
    scenes = products.Scenes(path.parent)
    bands = products.Bands.of(scenes.index)
    sides = list(zip(scenes.columns["height"], scenes.columns["width"], strict=True))
    if image is None and len(set(sides)) > 1:
        raise user_error(
            f"the scenes of {path} have different shapes",
            got=f"{len(sides)} scenes of {len(set(sides))} shapes",
            expected="scenes of one shape, or the number of a single scene",
            fix="open the scenes one by one, with image=0, image=1, ...",
        )
    indices = np.arange(scenes.count)
    if image is not None and 0 <= image < scenes.count:
        indices = indices[image : image + 1]
    height, width = sides[indices[0]]
    first, origin = int(indices[0]), (path, manifest)
    shape = (len(indices), len(bands.names), height, width)
    array = variable(IMAGE_DIMS, shape, np.float32, origin, _scene_pixels, first)
    mask = variable(("image", "y", "x"), (len(indices), height, width), np.uint8, origin, _scene_masks, first)
    columns = {name: [scenes.columns[name][number] for number in indices] for name in ("scene_id", "label")}
    places = [(scenes.columns["crs"][number], scenes.columns["transform"][number]) for number in indices]
    coordinates = {"image": indices, **along(columns), **_grid_coordinates(places), "mask": mask}
    return _image_arrays(array, coordinates, bands, scenes.index)


def _tile_pixels(path: Path, _: Manifest) -> Read:
    tiles = Tiles(path.parent)
    bands = products.Bands.of(tiles.info)
    return lambda rows, keys: taken(bands.physical(tiles.stored(rows)), keys)


def _tiles(path: Path, manifest: Manifest, _: int | None) -> StageArrays:
    tiles = Tiles(path.parent)
    bands, size = products.Bands.of(tiles.info), tiles.info["size"]
    columns = tiles.accepted("tile_id", "scene_id", "y", "x", "split", "label")
    coordinates = along({name: columns[name] for name in ("tile_id", "split", "label")})
    scene_input = find_input(path, manifest, stage="ingest")
    if scene_input is None:
        log.warning(f"the tiles of {path} have no coordinates, because their scenes were not found")
    else:
        scenes = products.Scenes(scene_input[0].parent)
        coordinates |= _grid_coordinates(tile_places(columns, scenes))
    shape = (tiles.count, len(bands.names), size, size)
    array = variable(IMAGE_DIMS, shape, np.float32, (path, manifest), _tile_pixels)
    return _image_arrays(array, coordinates, bands, tiles.info)


def _sample_pixels(path: Path, _: Manifest, tiles: Path) -> Read:
    samples = GeneratedImages(path, tiles=tiles)
    return lambda rows, keys: taken(samples.physical(rows), keys)


def _samples(path: Path, manifest: Manifest, _: int | None) -> StageArrays:
    samples = GeneratedImages(path)
    array = variable(IMAGE_DIMS, samples.shape, np.float32, (path, manifest), _sample_pixels, samples.tiles.absolute())
    info = dict(samples.info)
    if len(info.get("classes") or []) < 2:  # labels may be of clusters, which have no names
        info["classes"] = None
    return _image_arrays(array, along({"label": samples.labels}), samples.bands, info)


def _feature_rows(path: Path, manifest: Manifest) -> Read:
    return ConcatenatedArrays(shard_paths(path, manifest)).read


def _features(path: Path, manifest: Manifest, _: int | None) -> StageArrays:
    rows = ConcatenatedArrays(shard_paths(path, manifest))
    array = variable(("image", "feature"), rows.shape, rows.dtype, (path, manifest), _feature_rows)
    return StageArrays(array, {}, {})


def along(columns: dict[str, Any]) -> dict[str, Any]:
    """Return coordinates along the images from columns by name."""
    return {name: ("image", np.asarray(values)) for name, values in columns.items()}


def _grid_coordinates(places: list[tuple[str | None, Any]]) -> dict[str, Any]:
    """Return coordinates such that x = left + dx * column, y = top + dy * row."""
    if all(transform is None for _, transform in places):
        return {}
    nowhere = (np.nan,) * 6
    a, _, c, _, e, f = np.array([transform or nowhere for _, transform in places], np.float64).T
    return along({"crs": [crs or "" for crs, _ in places], "left": c, "top": f, "dx": a, "dy": e})


def _image_arrays(
    array: xarray.Variable, coordinates: dict[str, Any], bands: products.Bands, info: dict[str, Any]
) -> StageArrays:
    """Add names and attributes of the bands; scale and offset are single numbers if all bands share them."""
    attributes = {"units": bands.units, "gsd_m": info.get("gsd_m"), "classes": info.get("classes")}
    for name, values in (("scale", bands.scale), ("offset", bands.offset)):
        attributes[name] = values[0] if len(set(values)) == 1 else list(values)
    attributes = {name: value for name, value in attributes.items() if value is not None}
    return StageArrays(array, coordinates | {"band": list(bands.names)}, attributes)


OPENERS: dict[str, Opener] = {"ingest": _scenes, "tiles": _tiles, "sample": _samples, "features": _features}
