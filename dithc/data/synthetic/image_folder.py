"""Writes an ImageNet-style folder: a sub-folder a class, JPEG files of unlike sizes, the class deciding the landscape.

It can then be packed: as ImageNet is distributed (a tar archive of a tar archive a class), as WebDataset, as parquet shards.
"""

import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dithc.data.pictures import write_jpeg
from dithc.data.synthetic.landscape import grow
from dithc.data.synthetic.noise import Grid, generator
from dithc.data.synthetic.spectra import reflectance, true_colour
from dithc.data.synthetic.themes import THEMES
from dithc.data.table import write_pictures
from dithc.runs import atomic_write, outputs

# Pictures show about this many metres along their short side, however many pixels they have.
SHORT_SIDE_M = 520.0
# The traps of ImageNet: one picture in nine is smaller than the crop, one in eight is grey.
SMALL_EVERY, GREY_EVERY = 9, 8
SHARDS, ROWS_PER_GROUP = 2, 16
LAYOUTS = ("folders", "tar", "webdataset", "parquet")
LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Photograph:
    """One picture: class number and number within the class; `size` is the crop that it is meant for, in pixels."""

    label: int
    number: int
    size: int

    @property
    def href(self) -> str:
        return f"{wnid(self.label)}/{wnid(self.label)}_{self.number + 1}.JPEG"


def wnid(label: int) -> str:
    """Folder name of a class, in the form of ImageNet's identifiers."""
    return f"n{label + 1:08d}"


def write_photograph(folder: Path, photograph: Photograph, *, seed: int) -> None:
    """Writes one JPEG; exposure, scale, shape and quality differ from picture to picture."""
    rng = generator(seed, 2, photograph.label, photograph.number)
    small = photograph.number % SMALL_EVERY == SMALL_EVERY - 3
    short = round(photograph.size * (rng.uniform(0.55, 0.85) if small else rng.uniform(1.0, 1.8)))
    long = round(short * rng.uniform(1.0, 1.5))
    height, width = (short, long) if rng.uniform() < 0.75 else (long, short)
    grid = Grid(height, width, float(SHORT_SIDE_M * rng.uniform(0.85, 1.2) / short))
    land = grow(rng, grid, THEMES[photograph.label])
    image = reflectance(land, rng, bands=("B04", "B03", "B02"))  # (3, H, W)
    picture = true_colour(image, white=float(rng.uniform(0.21, 0.27)))
    if photograph.number % GREY_EVERY == GREY_EVERY - 4:
        picture = np.rint(picture @ LUMA).astype(np.uint8)
    path = folder / photograph.href
    path.parent.mkdir(parents=True, exist_ok=True)
    write_jpeg(path, picture, quality=int(rng.integers(86, 96)))


def write_class_index(folder: Path, *, classes: int) -> None:
    """class_index.json in the form of ImageNet's: label -> [folder, name]."""
    table = {str(label): [wnid(label), THEMES[label].name] for label in range(classes)}
    atomic_write(folder / "class_index.json", json.dumps(table, indent=2) + "\n")


def pack(folder: Path, *, layout: str) -> None:
    """Packs the class folders in `folder` as one of `LAYOUTS`, and removes them."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    if layout == "tar":
        whole = ((f"{path.name}.tar", _tar((one.name, one.read_bytes()) for one in _natural(path))) for path in classes)
        atomic_write(folder / "train.tar", _tar(whole))
    else:
        labelled = [(path, label) for label, of_class in enumerate(classes) for path in _natural(of_class)]
        for shard in range(SHARDS):
            part = [(path.name, path.read_bytes(), label) for path, label in labelled[shard::SHARDS]]
            if layout == "webdataset":
                atomic_write(folder / f"train-{shard:06d}.tar", _tar(_samples(part)))
            else:
                path = folder / f"train-{shard:05d}-of-{SHARDS:05d}.parquet"
                write_pictures(path, part, names=[one.name for one in classes], rows_per_group=ROWS_PER_GROUP)
    for path in classes:
        outputs.remove(path)


def _natural(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))


def _samples(pictures: list[tuple[str, bytes, int]]) -> Iterable[tuple[str, bytes]]:
    for name, content, label in pictures:
        stem = name.split(".")[0]
        yield f"{stem}.jpg", content
        yield f"{stem}.cls", str(label).encode()


def _tar(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A tar archive without times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
