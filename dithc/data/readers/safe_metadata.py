"""What a Sentinel-2 product says of itself: offsets and quantification from its XML, checksums from its manifest."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dithc.data.scene import Reason, Refused
from dithc.data.xml import find_all, find_text, read_xml
from dithc.runs import sha256_file

Level = Literal["L1C", "L2A"]

BANDS = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]
"""In the order of the attribute `band_id` of the product's XML."""
METADATA = re.compile(r"^MTD_MSI(L1C|L2A)\.xml$", re.IGNORECASE)
OFFSET_BASELINE = 4.0
"""From this processing baseline on, every product has offsets."""
ADD_OFFSET: dict[Level, str] = {"L1C": "RADIO_ADD_OFFSET", "L2A": "BOA_ADD_OFFSET"}
QUANTIFICATION: dict[Level, tuple[str, ...]] = {
    "L1C": ("QUANTIFICATION_VALUE",),
    "L2A": ("BOA_QUANTIFICATION_VALUE", "L2A_BOA_QUANTIFICATION_VALUE"),  # the latter before baseline 02.12
}
ALGORITHMS = {"MD5": "md5", "SHA3-256": "sha3_256", "SHA-256": "sha256", "SHA256": "sha256"}


@dataclass(frozen=True, kw_only=True)
class ProductMetadata:
    """Level, radiometry and provenance of a product.

    Attributes:
        offsets: added to a band's digital numbers, by band; 0 where the product has none.
        quantification: digital numbers per reflectance 1.
        facts: what is recorded with the scene.
    """

    level: Level
    offsets: dict[str, float]
    quantification: float
    facts: dict[str, Any]


def metadata_file(product: Path) -> Path:
    """The product's metadata file, whose name some versions of the processor write as `MTD_MSIL2a.xml`.

    Raises:
        Refused: there is none.
    """
    found = next((path for path in sorted(product.iterdir()) if METADATA.match(path.name)), None)
    if found is None:
        raise Refused(
            Reason.READ_ERROR,
            "the product has no metadata file",
            got=f"no MTD_MSIL1C.xml or MTD_MSIL2A.xml in {product}",
            expected="a whole .SAFE folder",
            remedy="download or unpack the product again",
        )
    return found


def level_of(product: Path) -> Level:
    """Level of a product, by the name of its metadata file."""
    return "L1C" if "L1C" in metadata_file(product).name.upper() else "L2A"


def read_metadata(product: Path) -> ProductMetadata:
    """Reads the product's metadata file.

    Raises:
        Refused: it is missing, lacks the quantification value, or is of a baseline with offsets and has none.
        UserError: it is no whole XML file.
    """
    path, level = metadata_file(product), level_of(product)
    root = read_xml(path)
    text = next(filter(None, (find_text(root, name) for name in QUANTIFICATION[level])), None)
    baseline = find_text(root, "PROCESSING_BASELINE")
    found = {int(one.get("band_id", "-1")): float(one.text or "nan") for one in find_all(root, ADD_OFFSET[level])}
    if text is None:
        raise Refused(
            Reason.READ_ERROR,
            "the product's metadata has no quantification value",
            got=f"no {QUANTIFICATION[level][0]} in {path.name}",
            expected="digital numbers per unit of reflectance, usually 10000",
            remedy="download the product again",
        )
    needs_offsets = baseline is not None and float(baseline) >= OFFSET_BASELINE
    missing = [band for number, band in enumerate(BANDS) if number not in found]
    if missing and (found or needs_offsets):
        raise Refused(
            Reason.OFFSET_CONTRADICTION,
            "the product's metadata lacks offsets that its processing baseline has",
            got=f"baseline {baseline}, no {ADD_OFFSET[level]} for {', '.join(missing)}",
            expected="an offset for each of the 13 bands from baseline 04.00 on",
            remedy="download the product again; its metadata was altered",
        )
    return ProductMetadata(
        level=level,
        offsets={band: found.get(number, 0.0) for number, band in enumerate(BANDS)},
        quantification=float(text),
        facts={
            "product_id": (find_text(root, "PRODUCT_URI") or product.name).removesuffix(".SAFE"),
            "satellite": find_text(root, "SPACECRAFT_NAME"),
            "sensing_time": find_text(root, "PRODUCT_START_TIME"),
            "baseline": baseline,
            "level": level,
            "offset_source": "xml" if found else "none",
        },
    )


def listed_checksums(product: Path) -> dict[Path, tuple[str, str]] | None:
    """Algorithm and digest of every file that manifest.safe lists; None without a manifest."""
    manifest = product / "manifest.safe"
    if not manifest.exists():
        return None
    listed = {}
    for stream in find_all(read_xml(manifest), "byteStream"):
        place, checksum = find_all(stream, "fileLocation"), find_all(stream, "checksum")
        if place and checksum:
            path = Path(os.path.normpath(product / place[0].get("href", "")))
            listed[path] = (checksum[0].get("checksumName", ""), (checksum[0].text or "").strip().lower())
    return listed


def verify_checksums(product: Path, listed: dict[Path, tuple[str, str]], *, used: list[Path]) -> None:
    """Compares every file of the product that is there with the manifest; the files that are used must be listed.

    One altered byte of a JPEG 2000 file decodes without an error to wrong pixels: only the checksum sees it.

    Raises:
        Refused: a checksum differs, its algorithm is unknown, or a used file is not listed.
    """
    unlisted = [path for path in used if path not in listed]
    if unlisted:
        raise _mismatch(product, unlisted[0], got="a file that manifest.safe does not list", expected="a listed file")
    for path in [*used, *(path for path in listed if path not in used and path.exists())]:
        name, expected = listed[path]
        if name.upper() not in ALGORITHMS:
            raise _mismatch(product, path, got=f"checksum {name!r}", expected=f"one of {', '.join(ALGORITHMS)}")
        with path.open("rb") as file:
            got = hashlib.file_digest(file, ALGORITHMS[name.upper()]).hexdigest()
        if got != expected:
            raise _mismatch(product, path, got=f"{name} {got}", expected=expected)


def _mismatch(product: Path, path: Path, *, got: str, expected: str) -> Refused:
    return Refused(
        Reason.CHECKSUM_MISMATCH,
        f"{os.path.relpath(path, product)} is not the file that manifest.safe lists",
        got=got,
        expected=expected,
        remedy="download the product again; `checksum: skip` trusts the files as they are",
    )


def combined_sha256(product: Path, paths: list[Path]) -> str:
    """One SHA-256 for several files of a product: over their relative paths and hashes, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{os.path.relpath(path, product)} {sha256_file(path)}\n".encode())
    return digest.hexdigest()
