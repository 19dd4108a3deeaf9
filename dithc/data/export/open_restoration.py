"""Output of the stage `restore` as an xarray.Dataset.

Legend: N scenes, K members, C bands, H, W scene.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray

from dithc.core.artifacts import Manifest
from dithc.core.integrity import load_checksummed
from dithc.core.logging import user_error
from dithc.data import Rows, products
from dithc.data.export.lazy_arrays import variable
from dithc.data.export.shards import Key, Read, taken

Array = npt.NDArray[Any]
STATISTICS = ("mean", "deviation", "q05", "q95")


def open_restoration(path: Path, manifest: Manifest, image: int | None = None) -> xarray.Dataset:
    """Open the images of a restoration; `image` is the number of a scene, required if scenes have different shapes.

    Returns:
        Variables `mean`, `deviation`, `q05`, `q95` (image, band, y, x) and `members` (image, member, band, y, x), float32 in
        `units`, NaN outside; `flags` (image, band, y, x): 0 outside, 1 observed, 2 restored. A single image has no axis
        `image`. Coordinates: `scene_id` and `time` (UTC, NaT if unknown). Scenes on one grid have coordinates `y` and `x`
        of the pixel centers (none if rotated), and attributes `crs` and `transform` (a, b, c, d, e, f).

    Raises:
        UserError: The scene does not exist, or the scenes have different shapes.
    """
    parts = [entry["path"].split("/")[0] for entry in manifest.files if entry["path"].startswith("scene-")]
    folders = list(dict.fromkeys(parts))  # in the order of the dataset
    records = [load_checksummed(Manifest.verified(path.parent / name / "scene.json").read_text()) for name in folders]
    chosen = range(len(folders)) if image is None else [image]
    numbers = "image=0" if len(folders) == 1 else f"image=0 to image={len(folders) - 1}"
    if image is not None and not 0 <= image < len(folders):
        raise user_error(f"{path} has no image {image}", got=image, expected=numbers, fix="choose another number")
    shapes = {tuple(records[number]["shape"]) for number in chosen}
    if len(shapes) != 1:
        raise user_error(
            f"the scenes of {path} have different shapes",
            got=f"{len(folders)} scenes of {len(shapes)} shapes",
            expected="scenes of one shape, or the number of a single scene",
            fix=f"open the scenes one by one, with {numbers}",
        )
    shape, names = shapes.pop(), [folders[number] for number in chosen]
    dims, origin = ("image", "band", "y", "x"), (path, manifest)
    arrays = {
        name: variable(dims, (len(names), *shape), dtype, origin, _pixels, names, name, shape)
        for name, dtype in (*((name, np.float32) for name in STATISTICS), ("flags", np.uint8))
    }
    count = manifest.summary["members"]
    members = (len(names), count, *shape)
    arrays["members"] = variable(("image", "member", *dims[1:]), members, np.float32, origin, _members, names, shape)
    coordinates: dict[str, Any] = {"image": list(chosen), "band": manifest.summary["bands"]}
    coordinates["scene_id"] = ("image", [records[number]["scene_id"] for number in chosen])
    coordinates["time"] = ("image", np.array([_time(records[number]["sensing_time"]) for number in chosen]))
    attributes = {"stage": manifest.stage, "name": manifest.name, "digest": manifest.digest}
    grids = [(records[number]["crs"], records[number]["transform"]) for number in chosen]
    crs, transform = grids[0]
    if transform is not None and all(grid == grids[0] for grid in grids):
        attributes |= {"crs": crs, "transform": transform}
        a, b, c, d, e, f = transform
        if b == d == 0:
            coordinates |= {"y": f + e * (np.arange(shape[1]) + 0.5), "x": c + a * (np.arange(shape[2]) + 0.5)}
    attributes |= {name: manifest.summary[name] for name in ("units", "sampler", "steps", "weights_description")}
    dataset = xarray.Dataset(arrays, coords=coordinates, attrs=attributes)
    return dataset if image is None else dataset.isel(image=0)


def _time(text: str | None) -> np.datetime64:
    """Return an ISO time, in UTC unless it has an offset; NaT for invalid text."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return np.datetime64("NaT", "ns")
    return np.datetime64(time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time, "ns")


def _pixels(path: Path, _: Manifest, folders: list[str], name: str, shape: tuple[int, ...]) -> Read:
    return lambda rows, keys: _read([path.parent / folders[row] / f"{name}.tif" for row in rows], keys, shape)


def _members(path: Path, manifest: Manifest, folders: list[str], shape: tuple[int, ...]) -> Read:
    numbers = np.arange(manifest.summary["members"])

    def read(rows: Rows, keys: tuple[Key, ...]) -> Array:
        places = [
            [path.parent / folders[row] / f"member-{number:02d}.tif" for number in numbers[keys[0]]] for row in rows
        ]
        return np.stack([_read(files, keys[1:], shape) for files in places])

    return read


def _read(files: list[Path], keys: tuple[Key, ...], shape: tuple[int, ...]) -> Array:
    """Return parts (n, C, h, w) of files of a shape; only the window that contains the parts is read."""
    bands, *axes = (np.arange(length)[key] for length, key in zip(shape, keys, strict=True))
    rows, columns = (
        slice(int(axis.min(initial=length - 1)), int(axis.max(initial=0)) + 1)
        for axis, length in zip(axes, shape[1:], strict=True)
    )
    windows = [products.read_window(Manifest.verified(file), rows, columns, bands=bands.tolist()) for file in files]
    return taken(np.stack(windows), (slice(None), axes[0] - rows.start, axes[1] - columns.start))
