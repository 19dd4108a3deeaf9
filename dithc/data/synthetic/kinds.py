"""The door of the generator: checks the request, writes a whole folder or nothing, leaves a finished one alone."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from dithc.data.synthetic import gaofen2, gaofen2_raw, geotiff, image_folder, safe_product, sentinel2, stac_items
from dithc.data.synthetic.themes import THEMES
from dithc.log import logger, problem, progress
from dithc.runs import atomic_write, outputs, sha256_file
from dithc.sealed import parse, plain

GENERATOR_VERSION = 1
RECORD = "synthetic.json"
# The side of a Sentinel-2 tile is 10980 pixels; below 96 its 60 m bands have hardly any pixels.
SENTINEL2_SIZES = (96, 10_980)
SIZES = (16, 16_384)
RAW_SIZES = (16, 2_048)  # of the multispectral image; the panchromatic one has four times the side
GRIDS_M = (0.5, 30.0)
DEFAULT_PRODUCT, DEFAULT_LAYOUT = "l2a", "folders"

Step = Callable[[Path], None]


class Kind(StrEnum):
    """What can be invented."""

    SENTINEL2 = "sentinel2"
    SENTINEL2_STAC = "sentinel2-stac"
    GAOFEN2 = "gaofen2"
    GAOFEN2_RAW = "gaofen2-raw"
    GEOTIFF = "geotiff"
    IMAGE_FOLDER = "image-folder"


DEFAULT_SIZES = {Kind.GAOFEN2_RAW: 256, Kind.IMAGE_FOLDER: 256}
DEFAULT_SIZE = 768
DEFAULT_GRIDS_M = {Kind.GAOFEN2: 4.0, Kind.GAOFEN2_RAW: 3.24, Kind.GEOTIFF: 30.0}
LIMITS = {Kind.SENTINEL2: SENTINEL2_SIZES, Kind.SENTINEL2_STAC: SENTINEL2_SIZES, Kind.GAOFEN2_RAW: RAW_SIZES}


@dataclass(frozen=True)
class Request:
    """What to write; all of it is in the record, and the same request gives the same bytes.

    Attributes:
        seed: any whole number from 0.
        scenes: products, or pictures a class.
        size: side of a scene in pixels (Sentinel-2: of 10 m), or the crop that pictures are meant for.
        classes: number of class folders; None but for `IMAGE_FOLDER`.
        gsd: metres per pixel, of the multispectral image; None but for those of `DEFAULT_GRIDS_M`.
        product: key of `safe_product.VARIANTS`; None but for `SENTINEL2`.
        layout: of `image_folder.LAYOUTS`; None but for `IMAGE_FOLDER`.
    """

    kind: Kind
    seed: int
    scenes: int
    size: int
    classes: int | None
    gsd: float | None
    product: str | None
    layout: str | None

    def record(self) -> dict[str, Any]:
        return {
            "generator": GENERATOR_VERSION,
            "kind": str(self.kind),
            "seed": self.seed,
            "scenes": self.scenes,
            "size": self.size,
            "classes": self.classes,
            "gsd": self.gsd,
            **({} if self.product in (None, DEFAULT_PRODUCT) else {"product": self.product}),
            **({} if self.layout in (None, DEFAULT_LAYOUT) else {"layout": self.layout}),
        }


def synthesize(
    kind: str,
    out: Path,
    *,
    seed: int = 0,
    scenes: int = 1,
    size: int | None = None,
    classes: int | None = None,
    gsd: float | None = None,
    product: str | None = None,
    layout: str | None = None,
    replace: bool = False,
) -> Path:
    """Writes invented inputs into the folder `out`, unless it already holds exactly these.

    Args:
        kind: a `Kind`: sentinel2, sentinel2-stac, gaofen2, gaofen2-raw, geotiff or image-folder.
        out: folder to make; it must be absent, empty, or hold an earlier result of the same arguments.
        seed: chooses the landscapes; other seeds give other ones.
        scenes: number of products, or of pictures a class.
        size: side in pixels; by default 768 (satellites) or 256 (raw Gaofen-2, pictures). Sentinel-2 needs a multiple of 6.
        classes: only for image-folder: number of classes, by default 4.
        gsd: only for gaofen2, gaofen2-raw and geotiff: metres per pixel, by default 4, 3.24 and 30.
        product: only for sentinel2: level and baseline, `l2a` (04.00) by default; `l2a-5` (05.11), `l2a-2` (02.14), `l1c`
            (05.11), `l1c-2` (02.09), or `l1c-granules`, two granules each in the format before December 2016.
        layout: only for image-folder: how the pictures are packed, `folders` by default; `tar`, as ImageNet is distributed,
            `webdataset` or `parquet`.
        replace: whether an earlier result of other arguments, of an older generator, or with files missing or cut short is
            replaced (when the new one is complete); content that the generator did not write is refused all the same.

    Returns:
        Path of synthetic.json in `out`: the arguments, and size and SHA-256 of every file.

    Raises:
        UserError: an argument is out of range or does not belong to the kind, or `out` holds something else.
    """
    request = _checked(
        kind, seed=seed, scenes=scenes, size=size, classes=classes, gsd=gsd, product=product, layout=layout
    )
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
    """One step a scene or picture; each writes into the folder it is given."""
    numbers = range(request.scenes)
    seed = request.seed
    match request.kind:
        case Kind.SENTINEL2:
            variant = safe_product.VARIANTS[request.product or DEFAULT_PRODUCT]
            each = safe_product.GRANULES if variant.long_names else 1
            products = [
                [
                    safe_product.SafeProduct(index=i * each + part, size=request.size, variant=variant)
                    for part in range(each)
                ]
                for i in numbers
            ]
            return [partial(sentinel2.write_product, granules=granules, seed=seed) for granules in products]
        case Kind.SENTINEL2_STAC:
            singles = [safe_product.SafeProduct(index=i, size=request.size) for i in numbers]
            return [partial(stac_items.write_scene, product=product, seed=seed) for product in singles]
        case Kind.GAOFEN2:
            scenes = [gaofen2.GaofenScene(index=i, size=request.size, gsd=request.gsd or 4.0) for i in numbers]
            return [partial(gaofen2.write_scene, scene=scene, seed=seed) for scene in scenes]
        case Kind.GAOFEN2_RAW:
            scenes = [gaofen2.GaofenScene(index=i, size=request.size, gsd=request.gsd or 3.24) for i in numbers]
            return [partial(gaofen2_raw.write_product, scene=scene, seed=seed) for scene in scenes]
        case Kind.GEOTIFF:
            scenes = [gaofen2.GaofenScene(index=i, size=request.size, gsd=request.gsd or 30.0) for i in numbers]
            return [partial(geotiff.write_scene, scene=scene, seed=seed) for scene in scenes]
        case Kind.IMAGE_FOLDER:
            classes = request.classes or 1
            photographs = [
                image_folder.Photograph(label=label, number=i, size=request.size)
                for label in range(classes)
                for i in numbers
            ]
            steps: list[Step] = [
                partial(image_folder.write_photograph, photograph=photograph, seed=seed) for photograph in photographs
            ]
            steps += [partial(image_folder.write_class_index, classes=classes)]
            if request.layout not in (None, DEFAULT_LAYOUT):
                steps += [partial(image_folder.pack, layout=request.layout)]
            return steps


def _checked(
    kind: str,
    *,
    seed: int,
    scenes: int,
    size: int | None,
    classes: int | None,
    gsd: float | None,
    product: str | None,
    layout: str | None,
) -> Request:
    """The request with its defaults, every number within its range."""
    if kind not in list(Kind):
        raise problem(
            "this kind of input cannot be invented",
            got=kind,
            expected=" or ".join(Kind),
            remedy="set --kind to one of these",
        )
    chosen = Kind(kind)
    _belongs("classes", classes, chosen, [Kind.IMAGE_FOLDER])
    _belongs("gsd", gsd, chosen, list(DEFAULT_GRIDS_M))
    _belongs("product", product, chosen, [Kind.SENTINEL2])
    _belongs("layout", layout, chosen, [Kind.IMAGE_FOLDER])
    _one_of("product", product, safe_product.VARIANTS)
    _one_of("layout", layout, image_folder.LAYOUTS)
    side = size if size is not None else DEFAULT_SIZES.get(chosen, DEFAULT_SIZE)
    most = safe_product.MAX_PRODUCTS
    limits = {Kind.SENTINEL2: most, Kind.SENTINEL2_STAC: most, Kind.IMAGE_FOLDER: 10**6}
    if product is not None and safe_product.VARIANTS[product].long_names:
        limits[chosen] //= safe_product.GRANULES
    _within("seed", seed, 0, 2**63 - 1)
    _within("scenes", scenes, 1, limits.get(chosen, gaofen2.MAX_SCENES))
    _within("size", side, *LIMITS.get(chosen, SIZES))
    if chosen in (Kind.SENTINEL2, Kind.SENTINEL2_STAC) and side % 6:
        raise problem(
            "--size does not fit the three grids of Sentinel-2",
            got=side,
            expected="a multiple of 6, so that 10 m, 20 m and 60 m pixels end together",
            remedy=f"use {side // 6 * 6} or {side // 6 * 6 + 6}",
        )
    if chosen is Kind.IMAGE_FOLDER:
        classes = 4 if classes is None else classes
        _within("classes", classes, 1, len(THEMES))
    if chosen in DEFAULT_GRIDS_M:
        gsd = DEFAULT_GRIDS_M[chosen] if gsd is None else gsd
        _within("gsd", gsd, *GRIDS_M)
    return Request(
        kind=chosen, seed=seed, scenes=scenes, size=side, classes=classes, gsd=gsd, product=product, layout=layout
    )


def _belongs(option: str, value: object, kind: Kind, owners: list[Kind]) -> None:
    if value is not None and kind not in owners:
        raise problem(
            f"--{option} has no meaning for {kind}",
            got=f"--{option} {value}",
            expected=f"--{option} only with --kind {' or '.join(owners)}",
            remedy="leave it out",
        )


def _one_of(option: str, value: str | None, known: Iterable[str]) -> None:
    if value is not None and value not in known:
        raise problem(
            f"this --{option} cannot be invented",
            got=value,
            expected=" or ".join(known),
            remedy=f"set --{option} to one of these",
        )


def _within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise problem(
            f"--{option} is out of range", got=value, expected=f"{low} to {high}", remedy="choose a number in the range"
        )


def _is_complete(out: Path, request: Request, *, replace: bool) -> bool:
    """Whether `out` holds exactly what is asked for; False where it is absent, empty, or may be replaced.

    Raises:
        UserError: it holds anything else.
    """
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
        remedy="choose another --out, or remove that folder if nothing in it is needed",
    )


def _found(record: Path) -> dict[str, Any]:
    """The record of an earlier result; empty where there is none to be read."""
    try:
        content = parse(plain(record).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
