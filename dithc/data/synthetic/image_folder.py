"""Generated ImageNet-style folder: a subfolder and a landscape per class, JPEG files of different sizes."""

import json
from pathlib import Path

import numpy as np

from dithc.core.artifacts import atomic_write
from dithc.data.images import write_jpeg
from dithc.data.synthetic.cover import THEMES
from dithc.data.synthetic.landscape import grow
from dithc.data.synthetic.noise import PixelGrid, generator
from dithc.data.synthetic.spectra import reflectance, true_color

# Extent of the short side of an image in meters, independent of its pixels.
SHORT_SIDE_M = 520.0
# Pitfalls of ImageNet: one image in nine is smaller than the crop, one in eight is gray.
SMALL_EVERY, GRAY_EVERY = 9, 8
LUMA = np.array([0.299, 0.587, 0.114])


def wnid(label: int) -> str:
    """Return the folder name of a class, in the form of ImageNet's identifiers."""
    return f"n{label + 1:08d}"


def write_photograph(folder: Path, *, label: int, number: int, size: int, seed: int) -> None:
    """Write one JPEG file of a class for a crop of `size` pixels, with random exposure, scale, shape and quality."""
    rng = generator(seed, 2, label, number)
    small = number % SMALL_EVERY == SMALL_EVERY - 3
    short = round(size * (rng.uniform(0.55, 0.85) if small else rng.uniform(1.0, 1.8)))
    long = round(short * rng.uniform(1.0, 1.5))
    height, width = (short, long) if rng.uniform() < 0.75 else (long, short)
    grid = PixelGrid(height, width, float(SHORT_SIDE_M * rng.uniform(0.85, 1.2) / short))
    land = grow(rng, grid, THEMES[label])
    image = reflectance(land, rng, bands=("B04", "B03", "B02"))  # (3, H, W)
    picture = true_color(image, white=float(rng.uniform(0.21, 0.27)))
    if number % GRAY_EVERY == GRAY_EVERY - 4:
        picture = np.rint(picture @ LUMA).astype(np.uint8)
    path = folder / wnid(label) / f"{wnid(label)}_{number + 1}.JPEG"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_jpeg(path, picture, quality=int(rng.integers(86, 96)))


def write_class_index(folder: Path, *, classes: int) -> None:
    """Write class_index.json in ImageNet's form: label -> [folder, name]."""
    table = {str(label): [wnid(label), THEMES[label].name] for label in range(classes)}
    atomic_write(folder / "class_index.json", json.dumps(table, indent=2) + "\n")
