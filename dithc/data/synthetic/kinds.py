"""The door of the generator: checks the request, writes a whole folder or nothing, leaves a finished one alone."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from dithc.data.synthetic import gaofen2, image_folder, safe, sentinel2
from dithc.data.synthetic.themes import THEMES
from dithc.log import logger, problem, progress
from dithc.runs import atomic_write, outputs, sha256_file
from dithc.sealed import parse, plain

GENERATOR_VERSION = 2
RECORD = "synthetic.json"
# The side of a Sentinel-2 tile is 10980 pixels; below 96 its 60 m bands have hardly any pixels.
SENTINEL2_SIZES = (96, 10_980)
SIZES = (16, 16_384)
GRIDS_M = (0.5, 30.0)
DEFAULT_CLASSES, DEFAULT_GSD_M = 4, 4.0

Step = Callable[[Path], None]


class Kind(StrEnum):
    """Input formats that can be generated."""

    SENTINEL2 = "sentinel2"
    GAOFEN2 = "gaofen2"
    IMAGE_FOLDER = "image-folder"


@dataclass(frozen=True)
class Request:
    """Content of a folder. The record lists every field, and the same request gives the same bytes.

    Attributes:
        seed: integer from 0.
        scenes: products, or images per class.
        size: side of a scene in pixels (Sentinel-2: of 10 m), or the crop that images are meant for.
        classes: number of class folders; only for `IMAGE_FOLDER`.
        gsd: metres per pixel; only for `GAOFEN2`.
    """

    kind: Kind
    seed: int
    scenes: int
    size: int
    classes: int | None
    gsd: float | None

    def record(self) -> dict[str, Any]:
        return {"generator": GENERATOR_VERSION, **asdict(self)}


def synthesize(
    kind: str,
    out: Path,
    *,
    seed: int = 0,
    scenes: int = 1,
    size: int | None = None,
    classes: int | None = None,
    gsd: float | None = None,
    replace: bool = False,
) -> Path:
    """Write synthetic inputs to the folder `out`, unless it already has exactly these; return the path of synthetic.json.

    Args:
        kind: A `Kind`: sentinel2 (products of level 2A, baseline 04.00), gaofen2 or image-folder.
        out: Folder that is absent, empty, or holds an earlier result of the same arguments.
        seed: Seed of the landscapes.
        scenes: Number of products, or of images per class.
        size: Side in pixels; by default 768 (satellites) or 256 (images). Sentinel-2 needs a multiple of 6.
        classes: Number of classes of image-folder, by default 4.
        gsd: Meters per pixel of gaofen2, by default 4.
        replace: Whether to replace an earlier result that differs or is incomplete; other content is never replaced.

    Raises:
        UserError: An argument is out of range or of another kind, or `out` has other content.
    """
    request = _checked(kind, seed=seed, scenes=scenes, size=size, classes=classes, gsd=gsd)
    if _is_complete(out, request, replace=replace):
        logger(__name__).info(f"{out} already holds these invented inputs: left as it is")
        return out / RECORD
    steps = _steps(request)
    with outputs.OutputFolder(out).replaced(stage="synthesize") as folder:
        with progress(total=len(steps), label=f"inventing {request.kind}", unit="scene") as bar:
            for step in steps:
                step(folder)
                bar.update(1)
        files = outputs.files_of(folder)
        listed = {
            path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
            for path in files
        }
        atomic_write(folder / RECORD, json.dumps({**request.record(), "files": listed}, indent=2) + "\n")
    return out / RECORD


def _steps(request: Request) -> list[Step]:
    """Return one step per scene or image; each step writes into the folder that it receives."""
    numbers, size, seed = range(request.scenes), request.size, request.seed
    match request.kind:
        case Kind.SENTINEL2:
            products = [safe.SafeProduct(index=i, size=size) for i in numbers]
            return [partial(sentinel2.write_product, product=product, seed=seed) for product in products]
        case Kind.GAOFEN2:
            scenes = [gaofen2.GaofenScene(index=i, size=size, gsd=request.gsd or DEFAULT_GSD_M) for i in numbers]
            return [partial(gaofen2.write_scene, scene=scene, seed=seed) for scene in scenes]
        case Kind.IMAGE_FOLDER:
            classes = request.classes or DEFAULT_CLASSES
            images = [image_folder.Photograph(label=c, number=i, size=size) for c in range(classes) for i in numbers]
            steps: list[Step] = [partial(image_folder.write_photograph, photograph=one, seed=seed) for one in images]
            return [*steps, partial(image_folder.write_class_index, classes=classes)]


def _checked(kind: str, *, seed: int, scenes: int, size: int | None, classes: int | None, gsd: float | None) -> Request:
    """Return the request with its defaults; every number is within its range."""
    if kind not in list(Kind):
        raise problem(
            "this kind of input cannot be generated",
            got=kind,
            expected=" or ".join(Kind),
            fix="set --kind to one of these",
        )
    chosen = Kind(kind)
    _belongs("classes", classes, chosen, Kind.IMAGE_FOLDER)
    _belongs("gsd", gsd, chosen, Kind.GAOFEN2)
    side = size if size is not None else 256 if chosen is Kind.IMAGE_FOLDER else 768
    most = {Kind.SENTINEL2: safe.MAX_PRODUCTS, Kind.GAOFEN2: gaofen2.MAX_SCENES, Kind.IMAGE_FOLDER: 10**6}
    _within("seed", seed, 0, 2**63 - 1)
    _within("scenes", scenes, 1, most[chosen])
    _within("size", side, *(SENTINEL2_SIZES if chosen is Kind.SENTINEL2 else SIZES))
    if chosen is Kind.SENTINEL2 and side % 6:
        raise problem(
            "--size does not fit the three grids of Sentinel-2",
            got=side,
            expected="a multiple of 6, so that 10 m, 20 m and 60 m pixels end together",
            fix=f"use {side // 6 * 6} or {side // 6 * 6 + 6}",
        )
    if chosen is Kind.IMAGE_FOLDER:
        classes = DEFAULT_CLASSES if classes is None else classes
        _within("classes", classes, 1, len(THEMES))
    if chosen is Kind.GAOFEN2:
        gsd = DEFAULT_GSD_M if gsd is None else gsd
        _within("gsd", gsd, *GRIDS_M)
    return Request(kind=chosen, seed=seed, scenes=scenes, size=side, classes=classes, gsd=gsd)


def _belongs(option: str, value: object, kind: Kind, owner: Kind) -> None:
    if value is not None and kind is not owner:
        raise problem(
            f"--{option} has no meaning for {kind}",
            got=f"--{option} {value}",
            expected=f"--{option} only with --kind {owner}",
            fix="omit it",
        )


def _within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise problem(
            f"--{option} is out of range", got=value, expected=f"{low} to {high}", fix="choose a number in the range"
        )


def _is_complete(out: Path, request: Request, *, replace: bool) -> bool:
    """Return whether `out` has exactly the requested content, False if it is absent, empty or replaceable; else UserError."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    found = _found(out / RECORD)
    files = found.pop("files", {})
    if found == request.record() and all(
        (out / name).is_file() and (out / name).stat().st_size == entry["bytes"] for name, entry in files.items()
    ):
        return True
    if replace and {"generator", "kind"} <= found.keys():
        logger(__name__).info(f"{out} holds other invented inputs, or not all files of these: it is replaced")
        return False
    if not found:
        got = "other content"
    elif found == request.record():
        got = "these inputs, but files are missing or cut short"
    else:
        got = ", ".join(f"{k} {v}" for k, v in found.items() if v != request.record().get(k)) + " in its synthetic.json"
    raise problem(
        f"{out} is in the way",
        got=got,
        expected="an absent or empty folder, or a complete earlier result of the same arguments",
        fix="choose another --out, or remove that folder if nothing in it is needed",
    )


def _found(record: Path) -> dict[str, Any]:
    """The record of an earlier result; empty where there is none to be read."""
    try:
        content = parse(plain(record).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
