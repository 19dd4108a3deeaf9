"""Damaged Gaofen products of level 1A."""

import os
import shutil
from pathlib import Path
from typing import Any

from tests.attack.products import Draws, Trial, Workspace, corrupt, replace

RAW: dict[str, Any] = {"kind": "gaofen2", "height_m": 120.0}
PANSHARPENED = {**RAW, "pansharpen": "gsa", "gsd_m": 1.0}


def copy_raw_product(workspace: Workspace) -> tuple[Path, str]:
    """Return a copy of the good level 1A product folder, and the path of the original."""
    source = next(path for path in (workspace.good_input("raw") / "products").iterdir() if path.is_dir())
    return Path(
        shutil.copytree(source, workspace.files / source.name, copy_function=os.link)
    ), f"raw/products/{source.name}"


def file_with_ending(root: Path, ending: str) -> Path:
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
    offsets, lengths = found.get(273) or found[324], found.get(279) or found[325]
    return [(offset, offset + length) for offset, length in zip(offsets, lengths, strict=True)]


def raw_bytes(draws: Draws, workspace: Workspace) -> Trial:
    """Damage a file of an unpacked product: detected in pixels, and in text and image headers if possible."""
    root, like = copy_raw_product(workspace)
    sharpened = draws.random() < 0.3
    ending = draws.choice(
        ["-MSS1.tiff", "-MSS1.tiff", "-MSS1.rpb", "-MSS1.xml", *(["-PAN1.tiff", "-PAN1.rpb"] if sharpened else [])]
    )
    path = file_with_ending(root, ending)
    whole = path.read_bytes()
    content, did = corrupt(draws, whole)
    changed = [at for at, (old, new) in enumerate(zip(whole, content, strict=False)) if old != new]
    first = min(changed, default=min(len(whole), len(content)))
    last = max(changed, default=len(whole)) if len(content) == len(whole) else len(whole)
    replace(path, content)
    in_pixels = ending.endswith(".tiff") and any(
        begin <= first and last < end for begin, end in data_of(workspace.good_input("raw").parent / like / path.name)
    )
    cut = ending.endswith(".tiff") and did.startswith("cut")
    return Trial(
        source=PANSHARPENED if sharpened else RAW,
        did=f"{path.name}: {did}",
        like=like,
        rejected=content != whole
        and cut
        and len(content) < data_of(workspace.good_input("raw").parent / like / path.name)[-1][1],
        altered=not in_pixels and not cut,
    )


GENERATORS = [raw_bytes]
