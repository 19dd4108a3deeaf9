"""Hostile archives: zip files of Sentinel-2 products, and .tar.gz files of Gaofen level 1A products.

They contain path traversal, links, devices, bombs, duplicates, false sizes, passwords, truncation and damage.
"""

import gzip
import io
import os
import shutil
import stat
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attack.products import SAFE, Draws, Place, Trial, special, spoilt

RAW: dict[str, Any] = {"kind": "gaofen2", "height_m": 120.0}
OUT = ["../x", "../../../x", "OUTSIDE/x", "a/../../x", "..\\x", "C:/x", "C:\\x", "./../x", "//x", "a//../../x", ".."]
CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"
SIZE_OF_CENTRAL = {
    "flags": (8, "<H"),
    "method": (10, "<H"),
    "crc": (16, "<I"),
    "packed": (20, "<I"),
    "size": (24, "<I"),
}
SIZE_OF_CENTRAL |= {"offset": (42, "<I"), "attributes": (38, "<I")}
LOCALS = {"flags": 6, "method": 8, "crc": 14, "packed": 18, "size": 22}


def zip_damaged(draws: Draws, place: Place) -> Trial:
    """Truncate a zip file, change bytes, or add bytes before or after it."""
    good = next(place.of("packed").glob("*.zip"))
    whole = good.read_bytes()
    how = draws.choice(["spoilt", "spoilt", "spoilt", "cut", "before", "behind", "empty", "no zip", "twice"])
    content, did = spoilt(draws, whole) if how == "spoilt" else (whole, how)
    if how == "cut":
        content = whole[: draws.randrange(len(whole))]
    elif how == "before":
        content = draws.randbytes(draws.randrange(1, 5000)) + whole
    elif how == "behind":
        content = whole + draws.randbytes(draws.randrange(1, 100_000))
    elif how == "twice":
        content = whole + whole
    elif how in ("empty", "no zip"):
        content = draws.randbytes(999) if how == "no zip" else b""
    (place.files / good.name).write_bytes(content)
    return Trial(source=SAFE, did=did, like="packed", refused=how in ("cut", "empty", "no zip"))


def zip_directory(draws: Draws, place: Place) -> Trial:
    """Make the directory and the header of a zip entry disagree, or falsify both."""
    good = next(place.of("packed").glob("*.zip"))
    content = bytearray(good.read_bytes())
    entries = []
    at = content.index(CENTRAL)
    while content[at : at + 4] == CENTRAL:
        lengths = struct.unpack_from("<HHH", content, at + 28)
        entries.append(at)
        at += 46 + sum(lengths)
    files = [at for at in entries if struct.unpack_from("<I", content, at + 20)[0]]
    entry = draws.choice(files)
    name = draws.choice(["size", "packed", "crc", "method", "flags", "offset", "attributes"])
    where, form = SIZE_OF_CENTRAL[name]
    (old,) = struct.unpack_from(form, content, entry + where)
    new = {
        "size": [0, 1, old - 1, old + 1, 2 * old, 2**31, 2**32 - 1],
        "packed": [0, 1, old - 1, old + 1, 2**31, 2**32 - 1],
        "crc": [old ^ 1, 0],
        "method": [0, 1, 9, 12, 14, 93, 99],
        "flags": [old | 1, old | 1 << 6, old | 1 << 13],
        "offset": [0, 1, struct.unpack_from("<I", content, draws.choice(files) + 42)[0], len(content) - 4, 2**32 - 1],
        "attributes": [kind << 16 for kind in (stat.S_IFLNK | 0o777, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK)],
    }[name]
    value = draws.choice([one for one in new if one != old])
    struct.pack_into(form, content, entry + where, value)
    both = draws.random() < 0.5 and name in LOCALS
    if both:
        struct.pack_into(form, content, struct.unpack_from("<I", content, entry + 42)[0] + LOCALS[name], value)
    (place.files / good.name).write_bytes(content)
    harmless = name == "packed" or (name == "flags" and not value & 0b1000001)  # no password: its content is compared
    did = f"{name} {old} is {value}{', in both' if both else ''}"
    return Trial(source=SAFE, did=did, like="packed", refused=not harmless)


def zip_entry(draws: Draws, place: Place) -> Trial:
    """Add an entry that no product has, or a variant of an existing entry."""
    good = next(place.of("packed").glob("*.zip"))
    path = Path(shutil.copy(good, place.files))
    with zipfile.ZipFile(good) as archive:
        root = archive.namelist()[0].partition("/")[0]
        files = [one.filename for one in archive.infolist() if not one.is_dir()]
    band = next(name for name in files if name.endswith("B02_10m.jp2"))
    name, content, refused, attributes, how_packed = f"{root}/x", b"x", True, 0, zipfile.ZIP_DEFLATED
    how = draws.choice(
        [
            "out",
            "link",
            "device",
            "twice",
            "bomb",
            "method",
            "conflict",
            "nul",
            "long",
            "deep",
            "case",
            "nested",
            "more",
            "many",
        ]
    )
    if how == "out":
        name = draws.choice([*OUT, f"{root}/../../x", f"{root}/./x", f"{root}//x"]).replace(
            "OUTSIDE", str(place.outside)
        )
    elif how in ("link", "device"):
        kinds = [stat.S_IFLNK] if how == "link" else [stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK]
        attributes, content = (draws.choice(kinds) | 0o777) << 16, draws.choice([b"/etc/passwd", b"..", b"../../x"])
    elif how == "twice":
        name, content = draws.choice(files), draws.choice([b"", b"other"])
    elif how == "bomb":
        content = bytes(256 << 20 if draws.random() < 0.2 else 64 << 20)
    elif how == "method":
        how_packed = draws.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    elif how == "conflict":
        name = draws.choice([root, f"{root}/GRANULE", f"{band}/x", os.path.dirname(band)])
    elif how == "nul":
        name = f"{root}/{draws.choice(['a:b', 'C:', ':'])}"
    elif how == "long":
        name = f"{root}/{'x' * draws.choice([256, 5000, 60_000])}"
    elif how == "deep":
        name = f"{root}/{'d/' * draws.choice([3000, 20_000])}x"
    elif how == "case":
        name, content, refused = draws.choice([f"{root}/MANIFEST.SAFE", f"{root}/HTML/x"]), b"other", False
    elif how == "nested":
        name, content, refused = draws.choice([f"{root}/x.zip", "y.zip", "S2A_y.zip"]), good.read_bytes(), False
    elif how == "more":  # adds a second product
        name = f"{draws.choice(['Z.SAFE', 'folder/Z.SAFE'])}/MTD_MSIL2A.xml"
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        info = zipfile.ZipInfo(name)
        info.external_attr, info.compress_type = attributes, how_packed
        archive.writestr(info, content)
        for number in range(100_001 if how == "many" else 0):
            archive.writestr(f"{root}/many/{number}", b"")
    return Trial(source=SAFE, did=f"{how}: {name[:60]}", like="packed", refused=refused)


def zip_other(draws: Draws, place: Place) -> Trial:
    """Replace a zip file by an incomplete product, another type of file, or no file."""
    good = next(place.of("packed").glob("*.zip"))
    path = place.files / good.name
    how = draws.choice(["nothing", "text", "no root", "lacks", "special", "forbidden", "wrapped", "latin-1"])
    refused = True
    if how == "special":
        how = special(draws, path, place)
        return Trial(source=SAFE, did=how, like="packed")
    if how in ("forbidden", "latin-1"):
        shutil.copy(good, path)
        path.chmod(0) if how == "forbidden" else path.rename(path.with_name(os.fsdecode(b"S2A_\xff.zip")))
        return Trial(source=SAFE, did=how, like="packed")
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        entries = source.infolist()
        left_out = draws.choice([one.filename for one in entries if one.filename.endswith(("_10m.jp2", "MSIL2A.xml"))])
        for entry in entries:
            name = entry.filename
            if how == "no root":
                name = name.partition("/")[2]
                refused = False  # the metadata file identifies a product
            elif how == "wrapped":
                name, refused = f"folder/{name}", False
            if name and how not in ("nothing", "text") and not (how == "lacks" and name == left_out):
                target.writestr(name, source.read(entry))
        if how == "text":
            target.writestr("readme.txt", "x")
    return Trial(source=SAFE, did=how, like="packed", refused=refused)


def raw_archive(place: Place) -> Path:
    """Return the product that is delivered packed."""
    return next((place.of("raw") / "products").glob("*.tar.gz"))


def tar_damaged(draws: Draws, place: Place) -> Trial:
    """Truncate a .tar.gz, change bytes, or append bytes."""
    good = raw_archive(place)
    whole = good.read_bytes()
    how = draws.choice(["spoilt", "spoilt", "spoilt", "spoilt", "cut", "behind", "twice", "empty", "no gzip", "plain"])
    content, did = spoilt(draws, whole) if how == "spoilt" else (whole, how)
    if how == "cut":
        content = whole[: draws.randrange(len(whole))]
    elif how == "behind":
        content = whole + draws.choice([bytes(4096), draws.randbytes(999)])
    elif how == "twice":  # a second gzip member after the end of the archive: its entries do not count
        content = whole + whole
    elif how in ("empty", "no gzip", "plain"):
        content = {"empty": b"", "no gzip": draws.randbytes(999), "plain": gzip.decompress(whole)}[how]
    (place.files / good.name).write_bytes(content)
    return Trial(
        source=RAW, did=did, like=f"raw/products/{good.name}", refused=how in ("cut", "empty", "no gzip", "plain")
    )


def tar_header(draws: Draws, place: Place) -> Trial:
    """Falsify size, type, name or checksum in an entry header; gzip's checksum is correct."""
    good = raw_archive(place)
    content = bytearray(gzip.decompress(good.read_bytes()))
    with tarfile.open(fileobj=io.BytesIO(bytes(content))) as archive:
        entries = [(one.offset, one.size, one.name) for one in archive]
    at, size, name = draws.choice(entries)
    how = draws.choice(["size", "size", "kind", "name", "checksum", "magic", "noise"])
    if how == "size":
        told = draws.choice(
            [f"{size + 1:011o}", f"{max(size - 1, 0):011o}", "77777777777", "-0000000001", "00000000000", "x" * 11]
        )
        new = draws.choice([told.encode() + b"\0", b"\x80" + bytes(3) + b"\xff" * 8, b"\xff" * 12])
        content[at + 124 : at + 136] = new
    elif how == "kind":
        content[at + 156 : at + 157] = draws.choice(
            [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"g", b"x", b"L", b"K", b"S", b"Z"]
        )
    elif how == "name":
        other = draws.choice([*OUT, "", "\0", entries[0][2], "x" * 99])
        content[at : at + 100] = other.encode()[:100].ljust(100, b"\0")
    elif how == "checksum":
        content[at + 148 : at + 156] = b"0000000\0"
    elif how == "magic":
        content[at + 257 : at + 265] = draws.randbytes(8)
    else:
        content[at : at + 512] = draws.randbytes(512)
    if how not in ("checksum", "noise"):
        content[at + 148 : at + 156] = b" " * 8
        content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    (place.files / good.name).write_bytes(gzip.compress(content, 1))
    return Trial(
        source=RAW,
        did=f"{how} of {name}",
        like=f"raw/products/{good.name}",
        refused=False,
    )


def tar_entry(draws: Draws, place: Place) -> Trial:
    """Add an entry that no product has, before or after the product's entries."""
    good = raw_archive(place)
    stem = good.name.removesuffix(".tar.gz")
    extra, content, refused = tarfile.TarInfo(f"{stem}-x.jpg"), b"", True
    how = draws.choice(
        ["out", "link", "hard link", "device", "twice", "bomb", "holes", "long", "pax", "folder", "other", "many"]
    )
    if how == "out":
        extra.name = draws.choice([one for one in OUT if ":/" not in one]).replace("OUTSIDE", str(place.outside))
    elif how in ("link", "hard link"):
        extra.type, extra.linkname = (
            (tarfile.SYMTYPE if how == "link" else tarfile.LNKTYPE),
            draws.choice(["/etc/passwd", "..", f"{stem}-MSS2.tiff"]),
        )
        extra.name = draws.choice([extra.name, f"{stem}-MSS2.tiff", f"{stem}-MSS2.rpb"])
    elif how == "device":
        extra.type = draws.choice([tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
    elif how == "twice":
        extra.name, content = f"{draws.choice(['', 'a/'])}{stem}-MSS2.{draws.choice(['tiff', 'rpb', 'xml'])}", b"other"
    elif how == "bomb":
        content = bytes(64 << 20)
    elif how == "holes":
        extra.type = tarfile.GNUTYPE_SPARSE
    elif how == "long":
        extra.name = "x" * draws.choice([1000, 100_000])
        refused = len(extra.name) > 10_000
    elif how == "pax":
        extra.pax_headers = draws.choice(
            [{"path": "../x"}, {"size": "99999999999"}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}]
        )
    elif how == "folder":
        extra.type, refused = tarfile.DIRTYPE, False
    elif how == "other":
        extra.name, content = f"{stem}-MSS1.tiff", b"other"
    first = draws.random() < 0.5
    extra.size = len(content)
    raw = io.BytesIO()
    form = tarfile.PAX_FORMAT if how == "pax" else tarfile.GNU_FORMAT
    with (
        gzip.open(good) as packed,
        tarfile.open(fileobj=packed) as source,
        tarfile.open(fileobj=raw, mode="w", format=form) as target,
    ):
        if first:
            target.addfile(extra, io.BytesIO(content))
        for entry in source:
            target.addfile(entry, source.extractfile(entry))
        if not first:
            target.addfile(extra, io.BytesIO(content))
        for number in range(1001 if how == "many" else 0):
            target.addfile(tarfile.TarInfo(f"{number}.jpg"), io.BytesIO(b""))
    (place.files / good.name).write_bytes(gzip.compress(raw.getvalue(), 1))
    return Trial(source=RAW, did=f"{how}: {extra.name[:60]}", like=f"raw/products/{good.name}", refused=refused)


def tar_other(draws: Draws, place: Place) -> Trial:
    """Replace a packed product by an incomplete product, another type of file, or no file."""
    good = raw_archive(place)
    stem, path = good.name.removesuffix(".tar.gz"), place.files / good.name
    how = draws.choice(
        ["special", "forbidden", "latin-1", "nothing", "no MSS2.tiff", "no MSS2.rpb", "PAN alone", "within a folder"]
    )
    if how == "special":
        return Trial(source=RAW, did=special(draws, path, place), like=f"raw/products/{good.name}")
    if how in ("forbidden", "latin-1"):
        shutil.copy(good, path)
        path.chmod(0) if how == "forbidden" else path.rename(
            path.with_name(os.fsdecode(b"GF2_PMS2_E1.0_N1.0_20200101_L1A1\xff.tar.gz"))
        )
        return Trial(source=RAW, did=how, like=f"raw/products/{good.name}")
    raw = io.BytesIO()
    kept: Callable[[str], bool] = {
        "nothing": lambda name: False,
        "no MSS2.tiff": lambda name: "MSS2.tiff" not in name,
        "no MSS2.rpb": lambda name: "MSS2.rpb" not in name,
        "PAN alone": lambda name: "PAN" in name,
        "within a folder": lambda name: True,
    }[how]
    with (
        gzip.open(good) as packed,
        tarfile.open(fileobj=packed) as source,
        tarfile.open(fileobj=raw, mode="w") as target,
    ):
        for entry in source:
            if kept(entry.name):
                content = source.extractfile(entry)
                entry.name = f"{stem}/{entry.name}" if how == "within a folder" else entry.name
                target.addfile(entry, content)
    path.write_bytes(gzip.compress(raw.getvalue(), 1))
    return Trial(source=RAW, did=how, like=f"raw/products/{good.name}", refused=how != "within a folder")


GENERATORS = [
    *(zip_damaged, zip_directory, zip_entry, zip_other),
    *(tar_damaged, tar_header, tar_entry, tar_other),
]
