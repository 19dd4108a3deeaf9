"""Hostile Gaofen scenes: level 1A with coefficients, metadata and heights, and georeferenced images."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio

from dithc.data.raster import write_geotiff
from tests.attack.products import NUMBERS, Draws, Place, Trial, replace, special, spoilt

RAW: dict[str, Any] = {"kind": "gaofen2", "height_m": 120.0}
CALIBRATED = {**RAW, "calibrate": "reflectance"}
SHARPENED = {**RAW, "pansharpen": "gsa", "gsd_m": 1.0}
GROUND: dict[str, Any] = {"kind": "gaofen2"}
NUMBER = r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?"
CORNERS = ("TopLeft", "TopRight", "BottomRight", "BottomLeft")
FARTHEST = 0.15
"""Share of the image's side (docs/data.md) beyond which coefficients and metadata contradict each other."""


def raw(place: Place) -> tuple[Path, str]:
    """Return a copy of the good level 1A product folder, and the path of the original."""
    source = next(path for path in (place.of("raw") / "products").iterdir() if path.is_dir())
    return Path(
        shutil.copytree(source, place.files / source.name, copy_function=os.link)
    ), f"raw/products/{source.name}"


def one(root: Path, ending: str) -> Path:
    return next(root.glob(f"*{ending}"))


def data_of(path: Path) -> list[tuple[int, int]]:
    """Return first and end byte of the coded pixels of a TIFF, from its first directory."""
    content = path.read_bytes()
    directory = int.from_bytes(content[4:8], "little")
    found: dict[int, list[int]] = {}
    for entry in range(int.from_bytes(content[directory : directory + 2], "little")):
        at = directory + 2 + 12 * entry
        tag, kind = (int.from_bytes(content[at + k : at + k + 2], "little") for k in (0, 2))
        count, size = int.from_bytes(content[at + 4 : at + 8], "little"), {3: 2, 4: 4}.get(kind, 1)
        start = at + 8 if count * size <= 4 else int.from_bytes(content[at + 8 : at + 12], "little")
        found[tag] = [
            int.from_bytes(content[start + k * size : start + (k + 1) * size], "little") for k in range(count)
        ]
    places, lengths = found.get(273) or found[324], found.get(279) or found[325]
    return [(place, place + length) for place, length in zip(places, lengths, strict=True)]


def numbers_of(text: str) -> dict[str, list[float]]:
    """Return the numbers of an `.rpb` by name, with a parser independent of the tested code."""
    found = re.findall(r"(\w+)\s*=\s*\(?([^;()]*)\)?\s*;", text)
    return {name: [float(number) for number in re.findall(NUMBER, numbers)] for name, numbers in found}


def project(rpc: dict[str, list[float]], longitude: float, latitude: float) -> npt.NDArray[np.float64]:
    """Return line and sample of a point at the middle height, by the RPC00B formula."""
    x = (longitude - rpc["longOffset"][0]) / rpc["longScale"][0]
    y = (latitude - rpc["latOffset"][0]) / rpc["latScale"][0]
    flat = np.array([1, x, y, 0, x * y, 0, 0, x * x, y * y, 0, 0, x**3, x * y * y, 0, x * x * y, y**3, 0, 0, 0, 0])
    lines, samples = (
        np.dot(rpc[f"{axis}NumCoef"], flat) / np.dot(rpc[f"{axis}DenCoef"], flat) for axis in ("line", "samp")
    )
    return np.array(
        [
            lines * rpc["lineScale"][0] + rpc["lineOffset"][0],
            samples * rpc["sampScale"][0] + rpc["sampOffset"][0],
        ]
    )


def contradicts(text: str, xml: str, *, side: int) -> bool:
    """Return whether coefficients and metadata place the corners further apart than terrain can explain."""
    rpc = numbers_of(text)
    expected = [(0, 0), (0, side), (side, side), (side, 0)]
    with np.errstate(all="ignore"):
        for corner, where in zip(CORNERS, expected, strict=True):
            told = [float(re.findall(f"<{corner}{axis}>([^<]*)<", xml)[0]) for axis in ("Longitude", "Latitude")]
            if not np.hypot(*(project(rpc, *told) - where)) <= FARTHEST * side:
                return True
    return False


def raw_bytes(draws: Draws, place: Place) -> Trial:
    """Damage a file of an unpacked product: detected in pixels, and in text and image headers if possible."""
    root, like = raw(place)
    sharpened = draws.random() < 0.3
    ending = draws.choice(
        ["-MSS1.tiff", "-MSS1.tiff", "-MSS1.rpb", "-MSS1.xml", *(["-PAN1.tiff", "-PAN1.rpb"] if sharpened else [])]
    )
    path = one(root, ending)
    whole = path.read_bytes()
    content, did = spoilt(draws, whole)
    changed = [at for at, (old, new) in enumerate(zip(whole, content, strict=False)) if old != new]
    first = min(changed, default=min(len(whole), len(content)))
    last = max(changed, default=len(whole)) if len(content) == len(whole) else len(whole)
    replace(path, content)
    in_pixels = ending.endswith(".tiff") and any(
        begin <= first and last < end for begin, end in data_of(place.of("raw").parent / like / path.name)
    )
    cut = ending.endswith(".tiff") and did.startswith("cut")
    return Trial(
        source=SHARPENED if sharpened else RAW,
        did=f"{path.name}: {did}",
        like=like,
        refused=content != whole and cut and len(content) < data_of(place.of("raw").parent / like / path.name)[-1][1],
        altered=not in_pixels and not cut,
    )


def raw_number(draws: Draws, place: Place) -> Trial:
    """Change a number of the coefficients; detectable changes and contradictions to the metadata are rejected."""
    root, like = raw(place)
    path = one(root, "-MSS1.rpb")
    text, xml = path.read_text(), one(root, "-MSS1.xml").read_text()
    body = text.index("lineOffset")
    found = draws.choice(list(re.finditer(NUMBER, text[body:])))
    begin, end = found.start() + body, found.end() + body
    value = float(found[0])
    other = draws.choice(
        [*NUMBERS, f"{value + 1:g}", f"{value * 1.5:g}", f"{-value!r}", f"{value * (1 + 1e-7)!r}", f"{value + 0.02!r}"]
    )
    changed = text[:begin] + other + text[end:]
    replace(path, changed.encode())
    try:
        plain = re.fullmatch(NUMBER, other) is not None and np.isfinite(float(other)) and "_" not in other
    except ValueError:
        plain = False
    same = plain and numbers_of(changed) == numbers_of(text)
    return Trial(
        source=RAW,
        did=f"{found[0]} is {other[:20]}",
        like=like,
        refused=not same and (not plain or contradicts(changed, xml, side=48)),
        altered=not same,
    )


def raw_text(draws: Draws, place: Place) -> Trial:
    """Remove or repeat parts of the coefficients, or take them from another image, format or type of file."""
    root, like = raw(place)
    path = one(root, "-MSS1.rpb")
    text = path.read_text()
    entries = re.findall(r"\t\w+ *=[^;]*;\n", text[text.index("\tlineOffset") :])
    entry = draws.choice(entries)
    other = re.sub(
        r"=\s*(\(?)[^;]*?(\)?);",
        lambda found: f"= {found[1]}{', '.join(['0.5'] * (20 if found[1] else 1))}{found[2]};",
        entry,
    )
    listed = next(one for one in entries if "(" in one)
    ways: dict[str, tuple[bytes | None, bool]] = {
        "lacks one": (text.replace(entry, "").encode(), True),
        "twice, the same": (text.replace(entry, entry + entry).encode(), False),
        "twice, another": (text.replace(entry, entry + other).encode(), True),
        "twice, another before": (text.replace(entry, other + entry).encode(), True),
        "19 coefficients": (text.replace(listed, re.sub(r",\s*[^,]*\)", ")", listed)).encode(), True),
        "21 coefficients": (text.replace(listed, listed.replace(")", ", 0.0)")).encode(), True),
        "exchanged": (
            text.replace("latOffset", "x").replace("longOffset", "latOffset").replace("x =", "longOffset =").encode(),
            True,
        ),
        "cut": (text[: draws.randrange(len(text) - 30)].encode(), True),
        "nothing": (b"", True),
        "windows": (text.replace("\n", "\r\n").encode(), False),
        "UTF-16": (text.encode("utf-16"), True),
        "byte order mark": (b"\xef\xbb\xbf" + text.encode(), False),
        "zeros": (bytes(len(text)), True),
        "huge": ((text + " " * (1 << 20)).encode(), True),
        "comma": (re.sub(r"(\d)\.(\d)", r"\1,\2", text).encode(), True),
        "of the panchromatic": (one(root, "-PAN1.rpb").read_bytes(), True),
        "special": (None, True),
        "forbidden": (None, True),
        "absent": (None, True),
        "and another copy": (None, True),
        "and an equal copy": (None, False),
    }
    how = draws.choice(sorted(ways))
    content, refused = ways[how]
    if content is not None:
        replace(path, content)
    elif how == "special":
        path.unlink()
        how += f" {special(draws, path, place)}"
    elif how == "forbidden":
        replace(path, text.encode())
        path.chmod(0)
    elif how == "absent":
        path.unlink()
    else:
        beside = path.with_name(path.name.replace(".rpb", draws.choice(["_rpc.txt", ".RPB"])))
        beside.write_text(text if not refused else text.replace(entry, other))
    return Trial(source=RAW, did=how, like=like, refused=refused)


def raw_metadata(draws: Draws, place: Place) -> Trial:
    """Change year, camera, satellite, sun or place in the metadata, or remove it, if a calibration needs it."""
    root, like = raw(place)
    path = one(root, "-MSS1.xml")
    text = path.read_text()

    def told(name: str, value: str) -> bytes:
        changed = re.sub(f"(<{name}>)[^<]*<", rf"\g<1>{value}<", text)
        assert changed != text, name
        return changed.encode()

    year = draws.choice(["1999", "2014", "2016", "2019", "2021", "2035", "0000", "99999", ""])
    entity = f'<!DOCTYPE a [<!ENTITY e SYSTEM "{place.outside}/pipe">]>'
    ways: dict[str, tuple[bytes | None, bool]] = {
        "year": (re.sub(r"(Time>)2020", rf"\g<1>{year}", text).encode(), True),
        "no time": (re.sub(r"<(Center|Receive)Time>[^<]*</\w+>", "", text).encode(), True),
        "time": (re.sub(r"(<(?:Center|Receive)Time>)[^<]*<", r"\g<1>noon<", text).encode(), True),
        "satellite": (told("SatelliteID", draws.choice(["GF1", "GF6", "", "S2A", "GF9"])), True),
        "camera": (told("SensorID", draws.choice(["PMS2", "WFV1", "", "pms1"])), True),
        "sun": (told("SolarZenith", draws.choice(["nan", "inf", "-1", "90", "1e300", "", "ten"])), True),
        "corner": (
            told(
                f"{draws.choice(CORNERS)}L{draws.choice(['at', 'ong'])}itude",
                draws.choice(["0", "nan", "1e300", "-40.1"]),
            ),
            True,
        ),
        "no corners": (re.sub(r"<\w+L(?:at|ong)itude>[^<]*</\w+>", "", text).encode(), False),
        "width": (
            told(draws.choice(["WidthInPixels", "HeightInPixels"]), draws.choice(["47", "96", "0", "-48", "1e9"])),
            True,
        ),
        "cut": (text[: draws.randrange(len(text) - 20)].encode(), True),
        "nothing": (b"", True),
        "doctype": ((entity + text.partition("?>")[2]).encode(), True),
        "HTML": (b"<html><body>404</body></html>", True),
        "latin-1": (text.replace("MYN", "\xe9").encode("latin-1"), True),
        "absent": (None, True),
        "special": (None, True),
        "forbidden": (None, True),
    }
    how = draws.choice(sorted(ways))
    content, refused = ways[how]
    if content is not None:
        replace(path, content)
    elif how == "forbidden":
        replace(path, text.encode())
        path.chmod(0)
    else:
        path.unlink()
        how = f"special {special(draws, path, place)}" if how == "special" else how
    return Trial(source=CALIBRATED, did=f"{how} {year if how == 'year' else ''}", like=like, refused=refused)


def raw_image(draws: Draws, place: Place) -> Trial:
    """Change type, number of bands, size or place of an image, or replace the file."""
    root, like = raw(place)
    sharpened = draws.random() < 0.4
    path = one(root, "-PAN1.tiff" if sharpened and draws.random() < 0.6 else "-MSS1.tiff")
    with rasterio.open(path) as raster:
        pixels = raster.read()
    nowhere: dict[str, Any] = {"transform": None, "epsg": None}
    ways: dict[str, tuple[npt.NDArray[Any], dict[str, Any]]] = {
        "uint8": (pixels.astype(np.uint8), nowhere),
        "int16": (pixels.astype(np.int16), nowhere),
        "float32": (np.where(pixels > 300, np.nan, pixels).astype(np.float32), nowhere),
        "complex64": (pixels.astype(np.complex64), nowhere),
        "bands": (np.concatenate([pixels, pixels[:1]]), nowhere),
        "fewer bands": (pixels[:1].repeat(3, axis=0), nowhere),
        "no data": (pixels, {**nowhere, "nodata": 300}),
        "zeros": (np.zeros_like(pixels), nowhere),
        "cut": (pixels[:, : -draws.randrange(1, 20)], nowhere),
        "cut right": (pixels[:, :, : -draws.randrange(1, 20)], nowhere),
        "larger": (np.pad(pixels, ((0, 0), (0, 5), (0, 0))), nowhere),
    }
    how = draws.choice([*sorted(ways), "special", "forbidden", "absent"])
    path_of_new = place.files / "new.tif"
    if how in ways:
        values, said = ways[how]
        write_geotiff(path_of_new, values, **said)
        path.unlink()
        path_of_new.rename(path)
    elif how == "forbidden":
        replace(path, path.read_bytes())
        path.chmod(0)
    else:
        path.unlink()
        how = f"special {special(draws, path, place)}" if how == "special" else how
    return Trial(source=SHARPENED if sharpened else RAW, did=f"{path.name}: {how}", like=like)


def raw_names(draws: Draws, place: Place) -> Trial:
    """Mix files of products, repeat them, or use odd names."""
    root, like = raw(place)
    image = one(root, "-MSS1.tiff")
    sharpened = draws.random() < 0.5
    ways: dict[str, tuple[Callable[[], object], bool]] = {
        "latin-1 folder": (lambda: root.rename(root.with_name(os.fsdecode(b"GF2_\xff"))), True),
        "latin-1 file": (lambda: image.rename(image.with_name(os.fsdecode(b"\xff-MSS1.tiff"))), True),
        "control": (lambda: root.rename(root.with_name("a\n\tb")), False),
        "beside": (lambda: (root / "readme.txt").write_text("x"), False),
        "jpg": (lambda: image.with_suffix(".jpg").write_bytes(b"x"), False),
        "two panchromatic": (
            lambda: shutil.copy(one(root, "-PAN1.tiff"), root / one(root, "-PAN1.tiff").name.replace("PAN1", "PAN2")),
            sharpened,
        ),
        "no panchromatic": (lambda: one(root, "-PAN1.tiff").unlink(), sharpened),
        "no coefficients of it": (lambda: one(root, "-PAN1.rpb").unlink(), sharpened),
        "no XML of it": (lambda: one(root, "-PAN1.xml").unlink(), False),
        "another date": (
            lambda: [
                path.rename(path.with_name(re.sub("_2020", "_2019", path.name))) for path in sorted(root.iterdir())
            ],
            True,
        ),
        "another camera": (
            lambda: [path.rename(path.with_name(path.name.replace("PMS1", "PMS2"))) for path in sorted(root.iterdir())],
            True,
        ),
    }
    how = draws.choice(sorted(ways))
    do, refused = ways[how]
    do()
    return Trial(source=SHARPENED if sharpened else RAW, did=how, like=like, refused=refused)


def heights(draws: Draws, place: Place) -> Trial:
    """Damage a DEM, change its unit, type or place, or replace the file: staging stops, or each product reports it."""
    root, like = raw(place)
    good = place.of("raw") / "terrain" / f"{root.name}.tif"
    path = place.files.parent / "dem.tif"
    with rasterio.open(good) as raster:
        values, transform, epsg = raster.read(), tuple(raster.transform)[:6], raster.crs.to_epsg()
    a, b, c, d, e, f = transform
    here: dict[str, Any] = {"transform": transform, "epsg": epsg}
    hole = np.where(values > 130, np.float32(draws.choice([-9999, -32768, 32767, 65535, 1e30, -3.4e38])), values)
    ways: dict[str, tuple[npt.NDArray[Any], dict[str, Any]]] = {
        "undeclared": (hole, here),
        "nan": (np.full_like(values, np.nan), here),
        "infinite": (np.full_like(values, np.inf), here),
        "centimetres": (values * np.float32(100), here),
        "complex": (values.astype(np.complex64), here),
        "two bands": (values.repeat(2, axis=0), here),
        "no system": (values, {"transform": None, "epsg": None}),
        "elsewhere": (values, {**here, "transform": (a, b, c + 1e6, d, e, f - 1e5)}),
        "another zone": (values, {**here, "epsg": draws.choice([32651, 32649, 32750])}),
        "degrees": (values, {**here, "epsg": 4326}),
        "no grid": (
            values,
            {
                **here,
                "transform": draws.choice(
                    [(a, b, float("nan"), d, e, f), (0.0, 0.0, c, 0.0, 0.0, f), (a, b, 1e300, d, e, f)]
                ),
            },
        ),
        "all no data": (np.full_like(values, -9999), {**here, "nodata": -9999}),
        "exchanged": (np.moveaxis(values, 0, 2)[:1], here),
    }
    how = draws.choice(
        [*sorted(ways), "feet", "special", "forbidden", "absent", "cut", "spoilt", "spoilt", "text", "folder"]
    )
    altered = False
    if how in ways:
        data, where = ways[how]
        write_geotiff(path, data, **where)
    elif how in ("feet", "forbidden"):
        shutil.copy(good, path)
        with rasterio.open(path, "r+") as raster:
            raster.units = (draws.choice(["ft", "US survey foot", "foot", "km", "dm"]) if how == "feet" else "m",)
        path.chmod(0 if how == "forbidden" else 0o644)
    elif how in ("cut", "spoilt", "text"):
        whole = good.read_bytes()
        content, did = (
            spoilt(draws, whole)
            if how == "spoilt"
            else (b"x" * 999 if how == "text" else whole[: draws.randrange(len(whole))], how)
        )
        at = next((i for i, (old, new) in enumerate(zip(whole, content, strict=False)) if old != new), len(content))
        altered = how == "spoilt" and not any(begin <= at < end for begin, end in data_of(good))
        path.write_bytes(content)
        how = did
    elif how == "folder":
        path.mkdir()
    elif how == "special":
        how = f"special {special(draws, path, place)}"
    return Trial(
        source={"kind": "gaofen2", "dem": str(path)},
        truth={"kind": "gaofen2", "dem": str(good)},
        did=how,
        like=like,
        refused=not how.startswith(("bit", "hole", "zeros", "added", "cut at")),
        altered=altered,
    )


def ground_image(draws: Draws, place: Place) -> Trial:
    """Change type, number of bands, CRS or grid of a georeferenced image, or truncate it."""
    for good in place.of("gaofen").glob("GF2*"):
        shutil.copy(good, place.files)
    path = one(place.files, ".tiff")
    with rasterio.open(path) as raster:
        pixels, transform, epsg, nodata = (
            raster.read(),
            tuple(raster.transform)[:6],
            raster.crs.to_epsg(),
            raster.nodata,
        )
    a, b, c, d, e, f = transform
    here: dict[str, Any] = {"transform": transform, "epsg": epsg, "nodata": nodata}
    ways: dict[str, tuple[npt.NDArray[Any], dict[str, Any]]] = {
        "uint8": (pixels.astype(np.uint8), here),
        "float32": (np.where(pixels > 300, np.nan, pixels).astype(np.float32), here),
        "int32": (pixels.astype(np.int32), here),
        "five bands": (np.concatenate([pixels, pixels[:1]]), here),
        "one band": (pixels[:1], here),
        "no system": (pixels, {"transform": None, "epsg": None}),
        "degrees": (pixels, {**here, "epsg": 4326}),
        "feet": (pixels, {**here, "epsg": 2263}),
        "rotated": (pixels, {**here, "transform": (a, 1.0, c, 1.0, e, f)}),
        "not square": (pixels, {**here, "transform": (a, b, c, d, 2 * e, f)}),
        "nowhere": (pixels, {**here, "transform": (a, b, draws.choice([float("nan"), float("inf"), 1e300]), d, e, f)}),
        "no pixels": (pixels, {**here, "transform": (draws.choice([0.0, float("nan")]), b, c, d, e, f)}),
        "zeros": (np.zeros_like(pixels), here),
    }
    how = draws.choice([*sorted(ways), "cut", "spoilt", "special", "forbidden", "XML", "XML"])
    altered, refused = False, True
    whole = path.read_bytes()
    if how in ways:
        values, where = ways[how]
        path.unlink()
        write_geotiff(path, values, **where)
    elif how == "cut":
        path.write_bytes(whole[: draws.randrange(data_of(path)[-1][1])])
    elif how == "spoilt":
        content, how = spoilt(draws, whole)
        at = next((i for i, (old, new) in enumerate(zip(whole, content, strict=False)) if old != new), len(content))
        altered, refused = not any(begin <= at < end for begin, end in data_of(path)), False
        path.write_bytes(content)
    elif how == "XML":
        xml = one(place.files, ".xml")
        ways_of_text = [
            b"",
            xml.read_bytes()[:-20],
            b"<a",
            b"\xff\xfe\x00",
            f'<!DOCTYPE a SYSTEM "{place.address}"><a/>'.encode(),
        ]
        xml.write_bytes(draws.choice(ways_of_text))
    elif how == "forbidden":
        path.chmod(0)
    else:
        path.unlink()
        how = f"special {special(draws, path, place)}"
    return Trial(source=GROUND, did=how, refused=refused, altered=altered)


GENERATORS = [
    *(raw_bytes, raw_number, raw_text, raw_metadata, raw_image, raw_names, heights, ground_image),
]
