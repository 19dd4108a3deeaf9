"""Hostile archives: zip files of Sentinel-2 products, and .tar.gz files of Gaofen level 1A products.

They contain path traversal, links, devices, bombs, duplicates, false sizes, passwords, truncation and damage.
"""

import gzip
import io
import stat
import struct
import tarfile
from pathlib import Path
from typing import Any

from tests.attack.products import SAFE, Draws, Trial, Workspace, corrupt

RAW: dict[str, Any] = {"kind": "gaofen2", "height_m": 120.0}
OUTSIDE = [
    "../x",
    "../../../x",
    "OUTSIDE/x",
    "a/../../x",
    "..\\x",
    "C:/x",
    "C:\\x",
    "./../x",
    "//x",
    "a//../../x",
    "..",
]
CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"
CENTRAL_FIELDS = {"flags": (8, "<H"), "method": (10, "<H"), "crc": (16, "<I"), "packed": (20, "<I"), "size": (24, "<I")}
CENTRAL_FIELDS |= {"offset": (42, "<I"), "attributes": (38, "<I")}
LOCAL_FIELDS = {"flags": 6, "method": 8, "crc": 14, "packed": 18, "size": 22}


def damaged_zip(draws: Draws, workspace: Workspace) -> Trial:
    """Truncate a zip file, change bytes, or add bytes before or after it."""
    good = next(workspace.good_input("archives").glob("*.zip"))
    whole = good.read_bytes()
    damage = draws.choice(["corrupt", "corrupt", "corrupt", "cut", "before", "behind", "empty", "no zip", "twice"])
    content, did = corrupt(draws, whole) if damage == "corrupt" else (whole, damage)
    if damage == "cut":
        content = whole[: draws.randrange(len(whole))]
    elif damage == "before":
        content = draws.randbytes(draws.randrange(1, 5000)) + whole
    elif damage == "behind":
        content = whole + draws.randbytes(draws.randrange(1, 100_000))
    elif damage == "twice":
        content = whole + whole
    elif damage in ("empty", "no zip"):
        content = draws.randbytes(999) if damage == "no zip" else b""
    (workspace.files / good.name).write_bytes(content)
    return Trial(source=SAFE, did=did, like="archives", rejected=damage in ("cut", "empty", "no zip"))


def zip_directory(draws: Draws, workspace: Workspace) -> Trial:
    """Make the directory and the header of a zip entry disagree, or falsify both."""
    good = next(workspace.good_input("archives").glob("*.zip"))
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
    offset, form = CENTRAL_FIELDS[name]
    (old,) = struct.unpack_from(form, content, entry + offset)
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
    struct.pack_into(form, content, entry + offset, value)
    both = draws.random() < 0.5 and name in LOCAL_FIELDS
    if both:
        struct.pack_into(form, content, struct.unpack_from("<I", content, entry + 42)[0] + LOCAL_FIELDS[name], value)
    (workspace.files / good.name).write_bytes(content)
    harmless = name == "packed" or (name == "flags" and not value & 0b1000001)  # no password: its content is compared
    did = f"{name} {old} is {value}{', in both' if both else ''}"
    return Trial(source=SAFE, did=did, like="archives", rejected=not harmless)


def raw_archive(workspace: Workspace) -> Path:
    return next((workspace.good_input("raw") / "products").glob("*.tar.gz"))


def tar_header(draws: Draws, workspace: Workspace) -> Trial:
    """Falsify size, type, name or checksum in an entry header; gzip's checksum is correct."""
    good = raw_archive(workspace)
    content = bytearray(gzip.decompress(good.read_bytes()))
    with tarfile.open(fileobj=io.BytesIO(bytes(content))) as archive:
        entries = [(one.offset, one.size, one.name) for one in archive]
    at, size, name = draws.choice(entries)
    damage = draws.choice(["size", "size", "kind", "name", "checksum", "magic", "noise"])
    if damage == "size":
        size_text = draws.choice(
            [f"{size + 1:011o}", f"{max(size - 1, 0):011o}", "77777777777", "-0000000001", "00000000000", "x" * 11]
        )
        new = draws.choice([size_text.encode() + b"\0", b"\x80" + bytes(3) + b"\xff" * 8, b"\xff" * 12])
        content[at + 124 : at + 136] = new
    elif damage == "kind":
        content[at + 156 : at + 157] = draws.choice(
            [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"g", b"x", b"L", b"K", b"S", b"Z"]
        )
    elif damage == "name":
        other = draws.choice([*OUTSIDE, "", "\0", entries[0][2], "x" * 99])
        content[at : at + 100] = other.encode()[:100].ljust(100, b"\0")
    elif damage == "checksum":
        content[at + 148 : at + 156] = b"0000000\0"
    elif damage == "magic":
        content[at + 257 : at + 265] = draws.randbytes(8)
    else:
        content[at : at + 512] = draws.randbytes(512)
    if damage not in ("checksum", "noise"):
        content[at + 148 : at + 156] = b" " * 8
        content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    (workspace.files / good.name).write_bytes(gzip.compress(content, 1))
    return Trial(source=RAW, did=f"{damage} of {name}", like=f"raw/products/{good.name}", rejected=False)


GENERATORS = [damaged_zip, zip_directory, tar_header]
