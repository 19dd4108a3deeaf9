"""Output of the stage `restore` as an xarray.Dataset.

Legend: N scenes, K members, C bands, H, W scene.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray

from dithc.core.artifacts import Manifest
from dithc.core.integrity import load_checksummed
from dithc.core.logging import user_error
from dithc.data import Rows, products
from dithc.data.export.lazy_arrays import Key, Read, taken, variable

Array = npt.NDArray[Any]
STATISTICS = ("mean", "deviation", "q05", "q95")


def open_restoration(path: Path, manifest: Manifest, image: int | None = None) -> xarray.Dataset:
    """Open the images of a restoration; `image` is the number of a scene, required if scenes have different shapes.

    Returns:
        Variables `mean`, `deviation`, `q05`, `q95` (image, band, y, x) and `members` (image, member, band, y, x), float32 in
        `units`, NaN outside; `flags` (image, band, y, x): 0 outside, 1 observed, 2 restored. A single image has no axis
        `image`.
    """
    folders = sorted({entry["path"].split("/")[0] for entry in manifest.files if entry["path"].startswith("scene-")})
    records = [load_checksummed(Manifest.verified(path.parent / name / "scene.json").read_text()) for name in folders]
    chosen = range(len(folders)) if image is None else [image]
    shapes = {tuple(records[number]["shape"]) for number in chosen if 0 <= number < len(records)}
    if len(shapes) != 1:
        raise user_error(
            f"scenes of {path} to open",
            got=f"{len(shapes)} shapes" if image is None else f"image {image}",
            expected=f"scenes of one shape, or a number from 0 to {len(folders) - 1}",
            fix="open the scenes one by one, with image=0, image=1, ...",
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
    attributes = {"stage": manifest.stage, "name": manifest.name, "digest": manifest.digest}
    attributes |= {
        name: manifest.summary[name] for name in ("units", "method", "sampler", "steps", "weights_description")
    }
    dataset = xarray.Dataset(arrays, coords=coordinates, attrs=attributes)
    return dataset if image is None else dataset.isel(image=0)


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
