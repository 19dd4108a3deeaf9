"""Selection of the files of a Sentinel-2 product: one per band, closest to the common grid."""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from dithc.config import datasets
from dithc.core.logging import UserError, get_logger
from dithc.data import stac
from dithc.data.file_checks import check_inside, check_regular
from dithc.data.readers.listing import glob, walk
from dithc.data.readers.sentinel2.safe_metadata import BANDS, METADATA, Level
from dithc.data.readers.sentinel2.zip_products import SUFFIX, names_in
from dithc.data.scene import Reason, SceneRejectedError

FILE = re.compile(r"_(B(?:0[1-9]|1[0-2]|8A)|SCL)(?:_L2A_TL_\w+?)?(?:_(10|20|60)m)?\.(?:jp2|tiff?)$", re.IGNORECASE)
"""Pattern of band files. Before December 2016 the classification was called `S2A_USER_SCL_L2A_TL_..._20m.jp2`."""
MASK_FILE = re.compile(r"(?:(MSK_CLDPRB)_(20|60)m|(MSK_CLASSI)_B00)\.(?:jp2|tiff?)$", re.IGNORECASE)
SCENE_CLASSIFICATION, CLOUD_PROBABILITY, CLASSI = "SCL", "MSK_CLDPRB", "MSK_CLASSI"
NATIVE_GSD_M = {band: stac.OWN_GSD_M[band] for band in BANDS}
GSD_M = stac.OWN_GSD_M | {CLASSI: 60.0}
PACKED = re.compile(r"^S2[A-D]_.*\.zip$", re.IGNORECASE)
GRIDS_M = (10.0, 20.0, 60.0)
LEVEL_BANDS: dict[Level, list[str]] = {"L1C": BANDS, "L2A": [band for band in BANDS if band != "B10"]}
log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class BandFile:
    """File of a band or mask, with the nominal pixel size of its name or, at level L1C, of the band."""

    band: str
    path: Path
    gsd_m: float


def products(folder: Path, add_unread: Callable[[Path], None] = lambda path: None) -> Iterator[Path]:
    """Yield products: folders and zip files with the content or the name of a product, and links to them.

    Products are not nested. A zip file next to its unpacked folder is not a product. `add_unread` receives all other files.
    """
    if not folder.is_dir():
        yield from [folder] if _is_packed(folder) else []
        return
    for parent, folders, names in walk(folder):
        if parent.name.upper().endswith(".SAFE") or any(METADATA.match(name) for name in names):
            folders.clear()
            yield parent
            continue
        names = [name for name in names if not name.startswith(".")]
        linked = [name for name in folders if name.upper().endswith(".SAFE") and (parent / name).is_symlink()]
        by_stem = {Path(name).stem.upper(): parent / name for name in folders}
        folders[:] = [name for name in folders if name not in linked]
        files = [name for name in names if name.upper().endswith(".SAFE") and name != "manifest.safe"]
        packed = [name for name in names if name.lower().endswith(SUFFIX) and _is_packed(parent / name)]
        if copies := [name for name in packed if _is_unpacked(by_stem.get(_stem(name)))]:
            log.info(f"reading {len(copies)} products from folders next to their zip files, such as {copies[0]}")
        yield from (parent / name for name in (*files, *linked, *(name for name in packed if name not in copies)))
        for name in {*names} - {*files, *packed}:
            add_unread(parent / name)


def _stem(name: str) -> str:
    return name[: -len(SUFFIX)].upper().removesuffix(".SAFE")


def _is_unpacked(folder: Path | None) -> bool:
    """Return whether a folder is named like a product, or contains one like an unpacked zip file."""
    if folder is None or folder.suffix.upper() == ".SAFE":
        return folder is not None
    try:
        return any(path.name.upper().endswith(".SAFE") or METADATA.match(path.name) for path in glob(folder, "*"))
    except OSError:  # an inaccessible folder is not read either
        return False


def _is_packed(path: Path) -> bool:
    if path.suffix.lower() != SUFFIX:
        return False
    if PACKED.match(path.name):
        return True
    try:
        return any(METADATA.match(name.rpartition("/")[2]) for name in names_in(path))
    except (OSError, ValueError, UserError):
        return False


def granules(product: Path) -> list[Path]:
    """Return the folders of a product with images: one, or several scenes in the format before December 2016."""
    return [path.parent for path in glob(product, "GRANULE/*/IMG_DATA") if path.is_dir()]


def packed_product(folder: Path) -> Path:
    """Return the product in an unpacked folder; raise SceneRejectedError if it has none, or several."""
    paths = [path for path in products(folder) if path.is_dir()]
    if len(paths) != 1:
        raise SceneRejectedError(
            Reason.WRONG_LAYOUT,
            f"the zip file contains {'several products' if paths else 'no product'}",
            got=", ".join(path.name for path in paths) or ", ".join(path.name for path in sorted(folder.iterdir())[:5]),
            expected="one folder *.SAFE, as delivered",
            fix="download it again, or unpack it",
        )
    return paths[0]


def band_files(
    product: Path, granule: Path | None, level: Level, *, source: datasets.Sentinel2Source
) -> dict[str, BandFile]:
    """Return one file of each band, of the classification if available, and of the requested masks.

    Its pixel size is the size of the grid, or the next finer; for coarser bands, the finest. `granule` is the folder of
    images, None if absent. Raises SceneRejectedError if a band or mask has no fine file, or two of one size.
    """
    bands: list[str] = [*(source.bands or LEVEL_BANDS[level])]
    if unknown := [band for band in bands if band not in LEVEL_BANDS[level]]:
        raise SceneRejectedError(
            Reason.MISSING_BAND,
            f"level {level} has no {', '.join(unknown)}",
            got=f"`bands: [{', '.join(bands)}]`",
            expected=f"some of {', '.join(LEVEL_BANDS[level])}",
            fix=f"remove {', '.join(unknown)} from `bands` of the source, or use L1C products",
        )
    gsd_m = source.gsd_m
    if granule is not None:
        check_inside(granule / "IMG_DATA", product)
    layers = _files(granule)
    requested = [*bands, *({SCENE_CLASSIFICATION} & layers.keys())]
    missing = [name for name in requested if not _is_fine(layers.get(name, {}), name, gsd_m)]
    if missing:
        raise _missing_error(layers, missing, bands, level=level, gsd_m=gsd_m)
    masks = _masks(granule, source.clouds)
    files = {}
    for name, sizes in ({name: layers[name] for name in requested} | masks).items():
        fine = [size for size in sizes if size <= gsd_m]
        size = max(fine) if fine else min(sizes)
        files[name] = BandFile(band=name, path=sizes[size], gsd_m=size)
        check_regular(files[name].path, inside=product)
    return files


def _masks(granule: Path | None, clouds: datasets.ProductCloudsConfig) -> dict[str, dict[float, Path]]:
    """Return the files of the requested quality masks by pixel size, from the folder next to the images."""
    requested = {CLOUD_PROBABILITY: clouds.min_cloud_probability is not None, CLASSI: clouds.use_msk_classi}
    masks: dict[str, dict[float, Path]] = {name: {} for name, is_requested in requested.items() if is_requested}
    for path in glob(granule, "QI_DATA/*") if granule and masks else ():
        match = MASK_FILE.search(path.name)
        name = match and (match[1] or match[3]).upper()
        if match and name in masks:
            masks[name].setdefault(float(match[2] or GSD_M[name]), path)
    if absent := [name for name, sizes in masks.items() if not sizes]:
        settings = {CLOUD_PROBABILITY: "clouds.min_cloud_probability", CLASSI: "clouds.use_msk_classi"}
        raise SceneRejectedError(
            Reason.INCOMPLETE,
            f"the product has no file of {' and '.join(absent)}",
            got="none in GRANULE/*/QI_DATA",
            expected="MSK_CLDPRB_20m of L2A, MSK_CLASSI_B00 of products from baseline 04.00 on",
            fix=f"download it again, or remove {' and '.join(f'`{settings[name]}`' for name in absent)} from the source",
        )
    return masks


def _files(granule: Path | None) -> dict[str, dict[float, Path]]:
    files: dict[str, dict[float, Path]] = {}
    for path in glob(granule, "IMG_DATA/**/*") if granule else ():
        match = FILE.search(path.name)
        if match is None:
            continue
        band = match[1].upper()
        gsd_m = float(match[2]) if match[2] else GSD_M[band]
        first = files.setdefault(band, {}).setdefault(gsd_m, path)
        if first != path:
            raise SceneRejectedError(
                Reason.WRONG_LAYOUT,
                f"the product has two files of {band} at {gsd_m:g} m",
                got=f"{first.name} and {path.name}",
                expected="one file per band and pixel size",
                fix="remove the file that does not belong to the product",
            )
    return files


def _is_fine(sizes: Collection[float], name: str, gsd_m: float) -> bool:
    """Return whether a band with files of these pixel sizes is fine enough for a grid."""
    return min(sizes, default=float("inf")) <= max(gsd_m, GSD_M[name])


def _missing_error(
    layers: dict[str, dict[float, Path]], missing: list[str], bands: list[str], *, level: Level, gsd_m: float
) -> SceneRejectedError:
    """Return the error for missing bands, with settings for the existing files: the finest grid with most bands."""
    fix, max_bands = "download or unpack the product again", 0
    for grid in sorted({gsd_m, *(size for size in GRIDS_M if size > gsd_m)}):
        usable = [band for band in bands if _is_fine(layers.get(band, {}), band, grid)]
        classified = _is_fine(layers.get(SCENE_CLASSIFICATION, {GSD_M[SCENE_CLASSIFICATION]: None}), "SCL", grid)
        if not classified or len(usable) <= max_bands or min(NATIVE_GSD_M[band] for band in usable) > grid:
            continue
        max_bands = len(usable)
        settings = [f"`gsd_m: {grid:g}`"] if grid != gsd_m else []
        settings += [f"`bands: [{', '.join(usable)}]`"] if usable != bands else []
        fix += f"; or set {' and '.join(settings)}, which the existing files support"
    return SceneRejectedError(
        Reason.MISSING_BAND,
        f"the product lacks {'a band' if len(missing) == 1 else 'bands'}",
        got="no file in GRANULE/*/IMG_DATA for "
        + ", ".join(f"{name} at {max(gsd_m, GSD_M[name]):g} m" for name in missing)
        + " or finer",
        expected=f"{', '.join(bands)} of {level}, each at its native pixel size or at the grid size ({gsd_m:g} m)",
        fix=fix,
    )
