"""Images for `dithc show`: grids of images, the loss of a run, the scores of a report, a memory plan.

Legend: N images, C bands or channels, H, W image.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.core.artifacts import Manifest, outputs
from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import get_logger, user_error
from dithc.data import mosaic, write_png
from dithc.data.export import find_input
from dithc.report import draw_fid, draw_loss, draw_plan, draw_tiles

IMAGES = 64  # maximum number of images in a grid
MAX_SIDE = 2048  # pixels; larger grids are subsampled without averaging, because they are previews
VISIBLE = (("B04", "B03", "B02"), ("R", "G", "B"))
log = get_logger(__name__)
ARRAYS = ("rgb-00000.npy", "shard-00000.npy", "stack-00000.npy")


def draw(path: Path, target: Path) -> None:
    """Draw the images of a stage, the loss of a run, the scores of a report or a memory plan, as a PNG.

    Raises UserError if `path`, a file or folder that dithc wrote, contains none of these.
    """
    folder, whole = (path, True) if path.is_dir() else (path.parent, path.name == "manifest.json")
    content = _json(path)
    if "origins" in content:
        outputs.write(target, draw_fid(path))
    elif "plan" in content or content.get("bench") == "automem":
        outputs.write(target, draw_plan(path))
    elif (metrics := _metrics_of(path, content)) is not None:
        outputs.write(target, draw_loss(metrics, store=metrics.parent.parent))
    elif content.get("stage") == "tiles":
        outputs.write(target, _tiles(path))
    elif whole and (folder / "grid.png").is_file():
        outputs.write(target, (folder / "grid.png").read_bytes())
    elif (array := _array_of(path, folder, whole=whole)) is not None:
        with outputs.replacing(target) as temporary:
            write_png(temporary, _grid(_load(array), bands=_bands(folder)))
    else:
        raise user_error(
            f"{path} has no image",
            got="numbers only",
            expected="images (scenes, tiles, latents, samples, .npy), a run's metrics, a report's JSON, or a memory "
            "plan",
            fix="remove --png",
        )


def _tiles(path: Path) -> bytes:
    """Draw a dataset given its manifest. Without its scenes, omit rejected tiles and masks."""
    manifest = Manifest.read(path, stage="tiles")
    scenes = find_input(path, manifest, stage="ingest")
    if scenes is None:
        log.warning(f"the scenes of {path} are missing: omitting rejected tiles and masks")
    return draw_tiles(path.parent, title=manifest.name, scenes=scenes and scenes[0].parent)


def _json(path: Path) -> dict[str, Any]:
    if path.suffix != ".json" or not path.is_file():
        return {}
    content = parse_json(require_regular_file(path).read_text())
    return content if isinstance(content, dict) else {}


def _metrics_of(path: Path, content: dict[str, Any]) -> Path | None:
    """Return metrics.jsonl, given it, a folder of a run, its store, one of its checkpoints or one of its manifests."""
    if path.is_dir():
        if steps := sorted(path.glob("step_*.json")):
            return _metrics_of(steps[-1], _json(steps[-1]))
        paths = [path / "metrics.jsonl", path / "metrics" / "metrics.jsonl", path.parent / "metrics" / "metrics.jsonl"]
    elif path.name == "metrics.jsonl":
        paths = [path]
    elif path.name == "checkpoint.json":
        paths = [path.parent.parent / "metrics" / "metrics.jsonl"]
    else:
        metrics = (content.get("summary") or {}).get("metrics")
        paths = [Path(metrics), path.parent / metrics] if metrics else []
    return next((one for one in paths if one.is_file()), None)


def _array_of(path: Path, folder: Path, *, whole: bool) -> Path | None:
    """Return the image array of an array file, a folder or a manifest; None for features."""
    if path.suffix == ".npy":
        return path
    arrays = [folder / name for name in ARRAYS if (folder / name).is_file()]
    return arrays[0] if whole and arrays and not (folder / "features.json").is_file() else None


def _bands(folder: Path) -> list[str]:
    for name in ("scenes.json", "dataset.json"):
        if (folder / name).is_file():
            return [str(band) for band in _json(folder / name).get("bands", [])]
    return []


def _load(path: Path) -> NDArray[Any]:
    """Load at most 64 images of an array as (N, C, H, W); (N, H, W), (C, H, W) and (H, W) get missing axes."""
    array = np.load(path, mmap_mode="r")
    if array.ndim == 3:  # a short first axis: bands of one image; otherwise images with one band
        array = array[None] if len(array) <= 16 else array[:, None]
    elif array.ndim == 2:
        array = array[None, None]
    if array.ndim != 4 or not array.size:
        got = f"shape {array.shape}"
        raise user_error(f"{path} has no image", got=got, expected="(N, C, H, W)", fix="remove --png")
    return np.asarray(array[:IMAGES])  # (N, C, H, W)


def _grid(images: NDArray[Any], *, bands: list[str]) -> NDArray[np.uint8]:
    """Arrange all images in one RGB grid: (N, C, H, W) -> (rows * H, columns * W, 3)."""
    columns = int(np.ceil(np.sqrt(len(images))))
    rows = -(-len(images) // columns)
    thin = max(1, -(-max(rows * images.shape[2], columns * images.shape[3]) // MAX_SIDE))
    return mosaic(_rgb(images[:, :, ::thin, ::thin], bands=bands).transpose(0, 3, 1, 2), columns=columns)


def _rgb(images: NDArray[Any], *, bands: list[str]) -> NDArray[np.uint8]:
    """Return three bands as bytes: bytes unchanged, other values stretched from the 1st to the 99th percentile."""
    indices = next(([bands.index(band) for band in names] for names in VISIBLE if set(names) <= set(bands)), [0, 1, 2])
    pixels = images[:, indices] if images.shape[1] >= 3 else images[:, [0, 0, 0]]
    pixels = pixels.transpose(0, 2, 3, 1)  # (N, H, W, 3)
    if pixels.dtype == np.uint8:
        return np.asarray(pixels, dtype=np.uint8)
    values = np.nan_to_num(pixels.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = np.percentile(values, [1, 99], axis=(0, 1, 2))
    unit = np.clip((values - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
    return np.asarray(np.floor(unit * 255 + 0.5), dtype=np.uint8)  # (N, H, W, 3)
