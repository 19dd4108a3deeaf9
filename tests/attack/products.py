"""Hostile data files and products from a seed; each generator damages a good input in a different way.

A generator receives random draws, the folder of good inputs and the folder to fill, and returns the settings for the
reader. Its output must be rejected with a reason, or read with exactly the pixels of the good input. Links and paths
out of it lead to pipes, so that opening them blocks forever.
"""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dithc.data import synthesize
from tests.inputs.gaofen2_raw import write_products
from tests.inputs.rasters import write_raster
from tests.inputs.safe_variants import VARIANTS, write_variant

SAFE: dict[str, Any] = {"kind": "sentinel2"}
IMAGE_FOLDER: dict[str, Any] = {"kind": "image-folder", "classes": "one", "size": 32}
GOOD_FILES = ("a.png",)
"""Good file next to a hostile file (`copy_good_image`)."""
Draws = random.Random


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Settings for the reader (`source`), the permitted results, and a description of the damage.

    Attributes:
        rejected: Whether reading the good pixels would also be wrong.
        kept: Names of scenes with unchanged rows.
        like: Good input that accepted pixels must equal, relative to the folder of good inputs; by default that of
            `kind`.
        truth: Settings for that input, if they differ from `source`.
        note: Word that an accepted scene must carry.
        altered: Whether other pixels are permitted, because the file itself is consistent and has no checksum.
    """

    source: dict[str, Any]
    did: str
    rejected: bool = True
    kept: tuple[str, ...] = ()
    like: str = ""
    truth: dict[str, Any] | None = None
    note: str = ""
    altered: bool = False


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Folders of a trial: good inputs, files of the trial, and files outside of it."""

    good: Path
    files: Path
    outside: Path

    def good_input(self, name: str) -> Path:
        """Return the good input of this name, created on first use."""
        folder = self.good / name
        if not folder.exists():
            GOOD_INPUTS[name](folder)
        return folder


def make_images(folder: Path) -> None:
    folder.mkdir()
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (48, 40, 3), dtype=np.uint8))
    for name in ("good.png", "good.jpg", "good.webp", "good.tif", "good.bmp"):
        picture.save(folder / name)


def make_archives(folder: Path) -> None:
    synthesize("sentinel2", folder, seed=3, scenes=1, size=96)
    source = next(folder.glob("*.SAFE"))
    shutil.make_archive(str(source.with_suffix("")), "zip", folder, source.name)
    shutil.rmtree(source)


GOOD_INPUTS: dict[str, Callable[[Path], object]] = {
    "safe": lambda folder: synthesize("sentinel2", folder, seed=3, scenes=1, size=96),
    **{name: partial(write_variant, name=name, seed=3) for name in VARIANTS if name != "l2a"},
    "archives": make_archives,
    "images": make_images,
    "raw": write_products,
    "gaofen": lambda folder: synthesize("gaofen2", folder, seed=5, scenes=1, size=48),
    "geotiff": lambda folder: write_raster(folder, size=48, seed=5),
}
"""Good inputs by name: products of every type, rasters, images."""


def replace(path: Path, content: bytes) -> None:
    """Replace a file by a new file, because it may be a hard link to the good input."""
    path.unlink()
    path.write_bytes(content)


def copy_product(workspace: Workspace, variant: str = "safe") -> Path:
    source = next(workspace.good_input(variant).glob("*.SAFE"))
    return Path(shutil.copytree(source, workspace.files / source.name, copy_function=os.link))


def file_of(draws: Draws, folder: Path, pattern: str = "*") -> Path:
    return draws.choice(sorted(path for path in folder.rglob(pattern) if path.is_file()))


def copy_good_image(workspace: Workspace, name: str) -> bytes:
    """Copy the good image next to the hostile file; return the content of the good image of a name."""
    shutil.copy(workspace.good_input("images") / "good.png", workspace.files / GOOD_FILES[0])
    return (workspace.good_input("images") / name).read_bytes()


def corrupt(draws: Draws, content: bytes) -> tuple[bytes, str]:
    """Truncate bytes, flip a bit, zero a part, or append bytes."""
    at = draws.randrange(len(content))
    damage = draws.choice(["cut", "bit", "hole", "zeros", "added"])
    changed = bytearray(content)
    if damage == "cut":
        changed = changed[:at]
    elif damage == "bit":
        changed[at] ^= 1 << draws.randrange(8)
    elif damage == "added":
        changed[at:at] = draws.randbytes(draws.randrange(1, 64))
    else:
        end = min(len(content), at + draws.randrange(16, 512)) if damage == "hole" else len(content)
        changed[at:end] = bytes(end - at)
    return bytes(changed), f"{damage} at {at} of {len(content)}"


def make_special_file(draws: Draws, path: Path, workspace: Workspace) -> str:
    pipe = workspace.outside / "pipe"
    targets = {"pipe": pipe, "zero": "/dev/zero", "passwd": "/etc/passwd", "dangling": "nowhere", "loop": path.name}
    damage = draws.choice([*targets, "fifo", "folder"])
    if damage in targets:
        path.symlink_to(targets[damage])
    elif damage == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    return damage
