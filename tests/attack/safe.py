"""Hostile Sentinel-2 products of every level and baseline: files, metadata, names, permissions, and user masks."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

from dithc.data.raster import write_geotiff
from tests.attack.products import NUMBERS, SAFE, Draws, Place, Trial, file_of, product, replace, special, spoilt

VARIANTS = ["l2a-2", "l2a-5", "l1c", "l1c-2", "l1c-granules"]
BAND = re.compile(r"_(B\w\w|SCL)(?:_(\d\d)m)?\.jp2$")
METADATA = re.compile(r"MTD_(?:MSI|SAF)L\w\w\w?.*\.xml$")
BESIDE = {**SAFE, "clouds": {"mask": {}}}


def read_of(granule: Path) -> set[Path]:
    """Return the files of a granule that are read on the 10 m grid: the finest of each band."""
    finest: dict[str, tuple[int, Path]] = {}
    for path in granule.rglob("IMG_DATA/**/*.jp2"):
        if found := BAND.search(path.name):
            size = int(found[2] or 0)
            finest[found[1]] = min(finest.get(found[1], (99, path)), (size, path))
    return {path for _, path in finest.values()}


def metadata_of(root: Path) -> Path:
    (found,) = (path for path in root.iterdir() if METADATA.search(path.name))
    return found


def truth_of(source: dict[str, Any]) -> dict[str, Any]:
    """Return the settings for the good product, without those for missing files."""
    return {key: value for key, value in source.items() if key not in ("checksum", "may_lack")}


def variant_bytes(draws: Draws, place: Place) -> Trial:
    """Damage a file of a product of any level: rejected if read, else noted; each granule separately."""
    variant = draws.choice(VARIANTS)
    root = product(place, variant)
    granules = sorted((root / "GRANULE").iterdir())
    path = file_of(draws, root, draws.choice(["*.jp2", "*.jp2", "*.xml", "manifest.safe", "*"]))
    whole = path.read_bytes()
    content, did = draws.choice([spoilt(draws, whole), (b"", "empty")])
    replace(path, content)
    others = [one for one in granules if not path.is_relative_to(one)] if path.is_relative_to(root / "GRANULE") else []
    kept = tuple(one.relative_to(place.files).as_posix() for one in others) if len(granules) > 1 else ()
    changed = content != whole and path.name != "manifest.safe"
    read = path == metadata_of(root) or any(path in read_of(one) for one in granules)
    return Trial(
        source=SAFE,
        did=f"{variant}, {path.name}: {did}",
        like=variant,
        refused=changed and read,
        kept=kept,
        note="damaged-beside" if changed and not read else "",
    )


def variant_lacks(draws: Draws, place: Place) -> Trial:
    """Remove, repeat or rename bands, in products that may lack files of their manifest."""
    variant = draws.choice(VARIANTS[:-1])
    root = product(place, variant)
    (granule,) = (root / "GRANULE").iterdir()
    native = sorted(path for path in read_of(granule) if "SCL" not in path.name)
    path, how = draws.choice(native), draws.choice(["absent", "twice", "renamed", "other band", "upper case"])
    coarser = sorted(one for one in granule.rglob(f"*_{BAND.search(path.name)[1]}_*m.jp2") if one != path)  # type: ignore[index]
    if how == "absent":
        path.unlink()
    elif how == "twice":
        shutil.copy(path, path.with_name(f"x{path.name}"))
    elif how == "renamed":
        path.rename(path.with_suffix(".jp2.part"))
    elif how == "upper case":
        path.rename(path.with_name(path.name.upper()))
    else:
        other = draws.choice([one for one in native if one != path and one.parent == path.parent] or [path])
        content = path.read_bytes()
        replace(other, content)
    sources = [{**SAFE, "may_lack": ["*"]}, {**SAFE, "checksum": "skip"}, SAFE]
    source = draws.choice(sources[2:] if how == "other band" else sources)
    # A band that is coarser than the grid is read from any remaining file, which may have other pixels.
    falls_back = bool(coarser) and "_10m" not in path.name and how in ("absent", "renamed") and source is not SAFE
    other_band = how == "other band"
    return Trial(
        source=source,
        truth=truth_of(source),
        did=f"{variant}, {path.name}: {how}, {source}",
        like=variant,
        refused=not (falls_back or (how == "upper case" and source == sources[1]))
        and not (other_band and other == path),
        altered=falls_back,
    )


def band_file(draws: Draws, place: Place) -> Trial:
    """Replace a band's file by a well-formed file that contradicts its name, in a trusted product."""
    root = product(place)
    path = draws.choice(sorted(read_of(next((root / "GRANULE").iterdir()))))
    with rasterio.open(path) as raster:
        pixels, gsd_m = raster.read(), raster.transform.a
        a, b, c, d, e, f = tuple(raster.transform)[:6]
        epsg = raster.crs.to_epsg()
    here: dict[str, Any] = {"transform": (a, b, c, d, e, f), "epsg": epsg}
    far = gsd_m * draws.choice([1, 2, 1000, -1, -3])
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "uint32": (pixels.astype(np.uint32) + 70_000, here),
        "int16": (pixels.astype(np.int16), here),
        "float32": (np.where(pixels > 500, np.nan, pixels).astype(np.float32), here),
        "complex64": (pixels.astype(np.complex64), here),
        "two bands": (np.repeat(pixels, 2, axis=0), here),
        "another zone": (pixels, {**here, "epsg": draws.choice([32651, 32750, 4326, 3857])}),
        "no system": (pixels, {"transform": None, "epsg": None}),
        "another size": (pixels, {**here, "transform": (2 * a, b, c, d, 2 * e, f)}),
        "not square": (pixels, {**here, "transform": (a, b, c, d, 1.5 * e, f)}),
        "rotated": (pixels, {**here, "transform": (a, 0.5, c, 0.5, e, f)}),
        "nowhere": (pixels, {**here, "transform": (a, b, float("nan"), d, e, 1e300)}),
        "cut": (pixels[:, : pixels.shape[1] // 2, :], here),
        "moved": (pixels, {**here, "transform": (a, b, c + far, d, e, f)}),
        "nothing": (np.zeros_like(pixels), here),
    }
    how = draws.choice(sorted(ways))
    values, where = ways[how]
    write_geotiff(place.files / "new.tif", values, **where)
    path.unlink()
    (place.files / "new.tif").rename(path)
    return Trial(
        source={**SAFE, "checksum": "skip"},
        truth=SAFE,
        did=f"{path.name}: {how}",
        refused=not (how == "nothing" and "SCL" not in path.name),
        expected=(lambda _, mask: not mask.any()) if how == "nothing" else None,
    )


def mask_beside(draws: Draws, place: Place) -> Trial:
    """Add a user mask that is damaged, of another shape, type or place, missing or duplicated."""
    root = product(place, "l1c-2")
    good = next(place.of("l1c-2").glob("*_mask.tif"))
    path = place.files / good.name
    shutil.copy(good, path)
    with rasterio.open(good) as raster:
        values, transform, epsg = raster.read(), tuple(raster.transform)[:6], raster.crs.to_epsg()
    a, b, c, d, e, f = transform
    ways: dict[str, Callable[[], object]] = {
        "absent": path.unlink,
        "twice": lambda: np.save(path.with_suffix(".npy"), values[0]),
        "cut": lambda: path.write_bytes(good.read_bytes()[: draws.randrange(good.stat().st_size)]),
        "special": lambda: (path.unlink(), special(draws, path, place)),
        "shape": lambda: write_geotiff(path, values[:, :-1], transform=transform, epsg=epsg),
        "place": lambda: write_geotiff(path, values, transform=(a, b, c + 10, d, e, f), epsg=epsg),
        "zone": lambda: write_geotiff(path, values, transform=transform, epsg=epsg + 1),
        "numbers": lambda: write_geotiff(path, values + np.array(7, values.dtype), transform=transform, epsg=epsg),
        "nan": lambda: (path.unlink(), np.save(path.with_suffix(".npy"), np.full(values.shape[1:], np.nan))),
        "objects": lambda: (path.unlink(), np.save(path.with_suffix(".npy"), np.array([{}], dtype=object))),
        "layers": lambda: (path.unlink(), np.save(path.with_suffix(".npy"), np.repeat(values, 2, axis=0))),
        "forbidden": lambda: path.chmod(0),
    }
    how = draws.choice(sorted(ways))
    ways[how]()
    assert root.is_dir()
    return Trial(source=BESIDE, did=how, like="l1c-2")


def xml_value(draws: Draws, place: Place) -> Trial:
    """Change any value of the metadata; its checksum reveals it."""
    variant = draws.choice(VARIANTS)
    path = metadata_of(product(place, variant))
    text = path.read_text()
    values = [
        found for found in re.finditer(r">([^<>]+)</|=\"([^\"]*)\"", text) if (found[1] or found[2] or "").strip()
    ]
    found = draws.choice(values)
    begin, end = found.span(1) if found[1] else found.span(2)
    other = draws.choice([*NUMBERS, "-900", "9999", "B99", "13", "&#0;", "&amp;", "<a/>", "\ud7ff"])
    assert text[begin:end] != other
    replace(path, (text[:begin] + other + text[end:]).encode())
    return Trial(source=SAFE, did=f"{variant}, {text[begin:end][:30]!r} is {other[:20]!r}", like=variant)


def xml_bands(draws: Draws, place: Place) -> Trial:
    """Remove, repeat or misassign band offsets in trusted files."""
    variant = draws.choice(["safe", "l2a-5", "l1c"])
    path = metadata_of(product(place, variant))
    text = path.read_text()
    offsets = re.findall(r"<(?:BOA|RADIO)_ADD_OFFSET [^>]*>[^<]*</\w+>", text)
    assert len(offsets) == 13
    one, other = draws.sample(offsets, 2)
    number = re.search(r"<(\w*QUANTIFICATION_VALUE)[^>]*>[^<]*</\1>", text)
    assert number is not None
    ways = {
        "one is absent": text.replace(one, ""),
        "all are absent": re.sub(r"<(BOA|RADIO)_ADD_OFFSET [^>]*>[^<]*</\w+>", "", text),
        "one is twice there": text.replace(one, one + one),
        "two of one band": text.replace(one, other),
        "of no band": text.replace(
            one, re.sub(r'band_id="\d+"', f'band_id="{draws.choice(["13", "-1", "", "1.0", " 1", "١"])}"', one)
        ),
        "without a band": text.replace(one, re.sub(r' band_id="\d+"', "", one)),
        "empty": text.replace(one, re.sub(r">[^<]*<", "><", one)),
        "two numbers": text.replace(number[0], number[0] + re.sub(r">[^<]*<", ">5000<", number[0])),
        "no number": text.replace(number[0], ""),
        "a comment": text.replace(one, f"<!-- {one} -->"),
        "old without": re.sub(r"<(BOA|RADIO)_ADD_OFFSET [^>]*>[^<]*</\w+>", "", text, count=6),
    }
    how = draws.choice(sorted(ways))
    replace(path, ways[how].encode())
    return Trial(source={**SAFE, "checksum": "skip"}, truth=SAFE, did=f"{variant}: {how}", like=variant)


def xml_text(draws: Draws, place: Place) -> Trial:
    """Write metadata and manifests that are not well-formed, or in an undeclared encoding."""
    root = product(place)
    path = draws.choice([root / "manifest.safe", metadata_of(root)])
    text = path.read_text()
    body = text.partition("?>")[2]
    nested = "<a>" * 300 + "</a>" * 300
    ways = {
        "cut": text[: draws.randrange(len(text) // 2)].encode(),
        "a tag": text.replace("</", "<", 1).encode(),
        "UTF-16 as UTF-8": text.encode("utf-16"),
        "an encoding": ('<?xml version="1.0" encoding="EBCDIC-XX-99"?>' + body).encode(),
        "latin-1 as UTF-8": ('<?xml version="1.0" encoding="UTF-8"?><!--\xe9-->' + body).encode("latin-1"),
        "control": text.replace(">", ">\x01", 3).encode(),
        "nothing": b"",
        "deep": f"{nested}".encode(),
        "doctype": (f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]>{body}').encode(),
        "html": b"<html><body>404 not found</body></html>",
        "binary": draws.randbytes(5000),
        "twice": (text + text).encode(),
    }
    how = draws.choice(sorted(ways))
    replace(path, ways[how])
    skip = path.name != "manifest.safe"
    return Trial(
        source={**SAFE, "checksum": "skip"} if skip else SAFE,
        truth=SAFE,
        did=f"{path.name}: {how}",
        refused=how not in ("UTF-16 as UTF-8",),  # the byte order mark identifies it
    )


def names(draws: Draws, place: Place) -> Trial:
    """Rename or nest products, granules and files, also in odd encodings."""
    root = product(place)
    granule = next((root / "GRANULE").iterdir())
    latin = os.fsdecode(b"S2A_\xe9t\xe9.SAFE")
    ways: dict[str, tuple[Callable[[], object], bool]] = {
        "latin-1": (lambda: root.rename(root.with_name(latin)), True),
        "latin-1 granule": (lambda: granule.rename(granule.with_name(os.fsdecode(b"L2A_\xff"))), True),
        "latin-1 file": (lambda: (root / os.fsdecode(b"\xff\xfe.txt")).touch(), False),
        "control": (lambda: root.rename(root.with_name("a\n\tb.SAFE")), False),
        "long": (lambda: root.rename(root.with_name("x" * 240 + ".SAFE")), False),
        "no suffix": (lambda: root.rename(root.with_name("product")), False),
        "no granule": (lambda: shutil.rmtree(root / "GRANULE"), True),
        "a granule more": (lambda: shutil.copytree(granule, granule.with_name("L2A_copy")), True),
        "granule renamed": (lambda: granule.rename(granule.with_name("x")), True),
        "both levels": (lambda: shutil.copy(metadata_of(root), root / "MTD_MSIL1C.xml"), True),
        "no metadata": (lambda: metadata_of(root).unlink(), True),
        "within another": (lambda: root.rename(shutil.copytree(root, place.files / "x.SAFE") / "y.SAFE"), False),
        "no manifest": (lambda: (root / "manifest.safe").unlink(), False),
    }
    how = draws.choice(sorted(ways))
    do, refused = ways[how]
    do()
    # Only the granule that the manifest lists stays a scene.
    kept = (granule.relative_to(place.files).as_posix(),) if how == "a granule more" else ()
    return Trial(source=SAFE, did=how, refused=refused, kept=kept)


def forbidden(draws: Draws, place: Place) -> Trial:
    """Remove the read permission of a file or folder."""
    variant = draws.choice(["safe", *VARIANTS[:-1]])
    root = product(place, variant)
    (granule,) = (root / "GRANULE").iterdir()
    read = sorted(read_of(granule))
    path = draws.choice(
        [*read, metadata_of(root), root / "manifest.safe", root, granule, granule / "IMG_DATA", root / "GRANULE"]
    )
    if path.is_file():
        shutil.copy(path, place.files / "new").replace(path)  # replaces the hard link to the good input
    path.chmod(draws.choice([0, 0o200, 0o111 if path.is_file() else 0o000]))
    return Trial(source=SAFE, did=f"{variant}: {path.name}", like=variant)


def in_its_place(draws: Draws, place: Place) -> Trial:
    """Add an entry named like a product: a file, pipe, device, link or empty folder."""
    root = product(place)
    path = place.files / f"A_{root.name}"
    how = draws.choice(["special", "file", "empty", "only metadata"])
    if how == "special":
        how = special(draws, path, place)
    elif how == "file":
        path.write_bytes(b"x")
    else:
        path.mkdir()
        if how == "only metadata":
            shutil.copy(metadata_of(root), path)
    return Trial(source=SAFE, did=how, kept=(root.name,))


GENERATORS = [
    *(variant_bytes, variant_lacks, band_file, mask_beside, xml_value, xml_bands, xml_text, names, forbidden),
    in_its_place,
]
