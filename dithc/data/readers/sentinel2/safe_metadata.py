"""Metadata of a Sentinel-2 product: offsets and quantification from its XML, and files from its manifest."""

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import nan
from pathlib import Path
from typing import Any, Literal

from dithc.core.logging import UserError
from dithc.data.file_checks import check_regular, open_regular
from dithc.data.readers.listing import glob
from dithc.data.readers.sentinel2.zip_products import SUFFIX, names_in
from dithc.data.scene import Reason, SceneRejectedError
from dithc.data.xml import Element, find_all, find_text, read_xml, sun_position

Level = Literal["L1C", "L2A"]

BANDS = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]
"""Band names in the order of the attribute `band_id` in the product's XML."""
METADATA = re.compile(r"^(?:MTD_MSI(?:L1C|L2A)|S2[A-D]_[A-Z]{4}_MTD_SAF(?:L1C|L2A)(?:_.*)?)\.xml$", re.IGNORECASE)
"""Names of metadata files; the second form is from before December 2016."""
OFFSET_BASELINE = 4.0
"""Lowest processing baseline with offsets in every product."""
ADD_OFFSET: dict[Level, str] = {"L1C": "RADIO_ADD_OFFSET", "L2A": "BOA_ADD_OFFSET"}
QUANTIFICATION: dict[Level, tuple[str, ...]] = {
    "L1C": ("QUANTIFICATION_VALUE",),
    "L2A": ("BOA_QUANTIFICATION_VALUE", "L2A_BOA_QUANTIFICATION_VALUE"),  # the latter before baseline 02.12
}
LIMITS = {
    "PROCESSING_BASELINE": (0.0, 99.99),
    **dict.fromkeys(ADD_OFFSET.values(), (-10000.0, 10000.0)),
    **{name: (1.0, 100000.0) for names in QUANTIFICATION.values() for name in names[:1]},
}
"""Plausible ranges of metadata. So far, baselines are 02.04 to 05.11, offsets -1000, quantifications 10000."""
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
SHOWN = 3
HASH_THREADS = 4
ALGORITHMS = {"MD5": "md5", "SHA3-256": "sha3_256", "SHA-256": "sha256", "SHA256": "sha256"}


@dataclass(frozen=True, kw_only=True)
class ProductMetadata:
    """Level, radiometry and provenance of a product."""

    level: Level
    offsets: dict[str, float]  # added to the digital numbers of each band
    quantification: float  # digital numbers per reflectance 1
    properties: dict[str, Any]


def metadata_file(product: Path) -> Path:
    """Return the product's metadata file, also named as `MTD_MSIL2a.xml`; raise SceneRejectedError for none or several."""
    files = [path for path in glob(product, "*") if METADATA.match(path.name)]
    if len(files) != 1:
        raise SceneRejectedError(
            Reason.READ_ERROR,
            f"the product has {'several metadata files' if files else 'no metadata file'}",
            got=", ".join(path.name for path in files) or f"no MTD_MSIL1C.xml or MTD_MSIL2A.xml in {product}",
            expected="a complete .SAFE folder of one level",
            fix="download or unpack the product again",
        )
    return files[0]


def level_of(product: Path) -> Level:
    """Return the level of a product, a folder or a zip file, by the name of its metadata file."""
    if product.suffix.lower() == SUFFIX:
        names = [name.rpartition("/")[2] for name in names_in(product)]
        matches = [name for name in names if METADATA.match(name)]
        if not matches:
            raise OSError("the zip file has no MTD_MSIL1C.xml or MTD_MSIL2A.xml")
        return "L1C" if "L1C" in matches[0].upper() else "L2A"
    return "L1C" if "L1C" in metadata_file(product).name.upper() else "L2A"


def read_metadata(product: Path) -> ProductMetadata:
    """Read the product's metadata file; SceneRejectedError without baseline, quantification or offsets of its baseline."""
    path, level = metadata_file(product), level_of(product)
    check_regular(path, inside=product)
    root = read_xml(path)
    baseline = find_text(root, "PROCESSING_BASELINE")
    quantification, number = _read_number(root, QUANTIFICATION[level]), _read_number(root, ("PROCESSING_BASELINE",))
    offsets = _offsets(root, ADD_OFFSET[level])
    missing = [band for number, band in enumerate(BANDS) if number not in offsets]
    if missing and (offsets or number >= OFFSET_BASELINE):
        raise SceneRejectedError(
            Reason.OFFSET_CONTRADICTION,
            "the product's metadata lacks the offsets of its processing baseline",
            got=f"baseline {baseline}, no {ADD_OFFSET[level]} for {', '.join(missing)}",
            expected="an offset for each of the 13 bands from baseline 04.00",
            fix="download the product again; its metadata was altered",
        )
    return ProductMetadata(
        level=level,
        offsets={band: offsets.get(number, 0.0) for number, band in enumerate(BANDS)},
        quantification=quantification,
        properties={
            "product_id": (find_text(root, "PRODUCT_URI") or product.name).removesuffix(".SAFE"),
            "satellite": find_text(root, "SPACECRAFT_NAME"),
            "sensing_time": find_text(root, "PRODUCT_START_TIME"),
            "baseline": baseline,
            "level": level,
            "offset_source": "xml" if offsets else "none",
        },
    )


def _read_number(root: Element, names: tuple[str, ...]) -> float:
    """Return the number of the first existing element; raise SceneRejectedError if it is missing, ambiguous or implausible."""
    texts = next(filter(None, ({(node.text or "").strip() for node in find_all(root, name)} for name in names)), set())
    if len(texts) != 1:
        got = ", ".join(sorted(texts)) or f"no {names[0]}"
        raise _invalid(f"the product's metadata does not have exactly one {names[0]}", got=got, expected="one number")
    return _number(texts.pop(), name=names[0])


def _offsets(root: Element, name: str) -> dict[int, float]:
    """Return offsets by `band_id`; raise SceneRejectedError for invalid numbers and duplicate bands."""
    offsets: dict[int, float] = {}
    for node in find_all(root, name):
        band = node.get("band_id", "")
        if band not in map(str, range(len(BANDS))) or int(band) in offsets:
            expected = f"0 to {len(BANDS) - 1}, each once"
            raise _invalid(
                f"the band of a {name} in the product's metadata is wrong", got=f"{band!r}", expected=expected
            )
        offsets[int(band)] = _number((node.text or "").strip(), name=name)
    return offsets


def _number(text: str, *, name: str) -> float:
    low, high = LIMITS[name]
    value = float(text) if NUMBER.fullmatch(text) else nan
    if not low <= value <= high:
        title = f"a number of the product's metadata is wrong: {name}"
        raise _invalid(title, got=repr(text), expected=f"a number of {low:g} to {high:g}")
    return value


def _invalid(title: str, *, got: str, expected: str) -> SceneRejectedError:
    fix = "download the product again; its metadata was altered"
    return SceneRejectedError(Reason.READ_ERROR, title, got=got, expected=expected, fix=fix)


def sun_angles(granule: Path | None) -> dict[str, float]:
    """Return mean elevation and azimuth of the sun in degrees from a granule; empty without plausible values."""
    angles: dict[str, float] = {}
    for path in glob(granule, "*.xml") if granule is not None else ():
        with suppress(OSError, UserError):
            check_regular(path, inside=granule)
            for sun in find_all(read_xml(path), "Mean_Sun_Angle"):
                angles = sun_position(sun, "ZENITH_ANGLE", "AZIMUTH_ANGLE") or angles
    return angles


def listed_files(product: Path) -> dict[str, tuple[str, str]] | None:
    """Return algorithm and digest of every file in manifest.safe, by path in the product; None without a manifest."""
    manifest = product / "manifest.safe"
    if not os.path.lexists(manifest):
        return None
    check_regular(manifest, inside=product)
    listed: dict[str, tuple[str, str]] = {}
    for stream in find_all(read_xml(manifest), "byteStream"):
        for location in find_all(stream, "fileLocation"):
            href = location.get("href", "")
            path = os.path.normpath(href)
            node = next(iter(find_all(stream, "checksum")), None)
            entry = ("", "") if node is None else (node.get("checksumName", ""), (node.text or "").strip().lower())
            if os.path.isabs(path) or path.split(os.sep)[0] in ("..", "."):
                raise _mismatch(product, manifest, got=f"it lists {href!r}", expected="files inside the product")
            if listed.setdefault(path, entry) != entry:
                raise _mismatch(product, manifest, got=f"it lists {href!r} twice", expected="one checksum per file")
    return listed


def verify_files(
    product: Path, listed: dict[str, tuple[str, str]], *, used: list[Path], optional_files: list[str]
) -> tuple[int, list[str]]:
    """Compare a product with its manifest; return the number of absent and the names of damaged files that are not used.

    An altered byte of a JPEG 2000 file may decode without an error to wrong pixels, which only the checksum detects. Raises
    SceneRejectedError if a `used` file is not listed or differs, or a listed file is missing that no pattern of `optional_files`
    matches.
    """
    names = [path.relative_to(product).as_posix() for path in used]
    absent = [name for name in listed if name not in names and not os.path.lexists(product / name)]
    for name in names:
        if name not in listed:
            raise _mismatch(
                product, product / name, got="a file that manifest.safe does not list", expected="a listed file"
            )
    unused = [name for name in listed if name not in names and name not in absent]

    def difference(name: str) -> tuple[str, str] | None:
        kind, expected = listed[name]
        if kind.upper() not in ALGORITHMS:
            return f"checksum {kind!r}", f"one of {', '.join(ALGORITHMS)}"
        with open_regular(product / name, inside=product) as file:
            got = hashlib.file_digest(file, ALGORITHMS[kind.upper()]).hexdigest()
        return None if got == expected else (f"{kind} {got}", expected)

    with ThreadPoolExecutor(HASH_THREADS) as pool:
        for name, differs in zip(names, pool.map(difference, names), strict=True):
            if differs:
                raise _mismatch(product, product / name, got=differs[0], expected=differs[1])
        damaged = [name for name, differs in zip(unused, pool.map(difference, unused), strict=True) if differs]
    needed = [name for name in absent if not any(fnmatchcase(name, pattern) for pattern in optional_files)]
    if needed:
        raise SceneRejectedError(
            Reason.INCOMPLETE,
            f"the product lacks {len(needed)} of the {len(listed)} files that manifest.safe lists",
            got=f"no {', '.join(needed[:SHOWN])}" + (f" and {len(needed) - SHOWN} more" if len(needed) > SHOWN else ""),
            expected="the complete product",
            fix="download or unpack it again; `optional_files` of the source lists optional files, such as `*/QI_DATA/*`",
        )
    return len(absent), damaged


def _mismatch(product: Path, path: Path, *, got: str, expected: str) -> SceneRejectedError:
    fix = "download the product again; `checksum: skip` trusts the files as they are"
    title = f"{os.path.relpath(path, product)} differs from its entry in manifest.safe"
    return SceneRejectedError(Reason.CHECKSUM_MISMATCH, title, got=got, expected=expected, fix=fix)
