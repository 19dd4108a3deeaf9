"""Pictures in class folders, prepared as the ImageNet protocol of ADM and DiT asks: RGB, short side scaled, centre crop."""

from pathlib import Path

import numpy as np

from dithc.config import datasets
from dithc.data.files import check_room, printable
from dithc.data.pictures import center_crop, read_rgb
from dithc.data.readers.listing import exists, list_files, nothing_found, scene_id
from dithc.data.scene import Mask, Place, Scene, located
from dithc.log import UserError, problem
from dithc.runs import sha256_file

SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
BANDS = ["R", "G", "B"]
REMEDY = "point `source.path` at the folder whose sub-folders are the classes, or set `classes: one` for a flat folder"


class ImageFolderReader:
    """Reads pictures; a label is the index of the class folder in sorted order."""

    def __init__(self, source: datasets.ImageFolder, folder: Path) -> None:
        self.source, self.folder = source, folder
        wanted = "pictures (" + ", ".join(sorted(SUFFIXES)) + ")"
        exists(folder, wanted=wanted)
        if source.classes == "one":
            self.classes = [printable(folder.name)]
            self.paths = list_files(folder, suffixes=SUFFIXES, wanted=wanted, remedy=REMEDY)
            self._labels = dict.fromkeys(self.paths, 0)
            return
        inside = folder.iterdir() if folder.is_dir() else ()
        folders = sorted(path for path in inside if path.is_dir() and not path.name.startswith("."))
        _check_apart(folder, folders)
        found = {
            path: list_files(path, suffixes=SUFFIXES, wanted=wanted, remedy="remove the empty folder; " + REMEDY)
            for path in folders
        }
        if not found:
            raise nothing_found(folder, wanted=f"a folder per class, with {wanted}", remedy=REMEDY)
        self.classes = [printable(path.name) for path in found]
        self._labels = {picture: label for label, pictures in enumerate(found.values()) for picture in pictures}
        self.paths = list(self._labels)

    def inputs(self, path: Path) -> list[Path]:
        """The picture alone."""
        return [path]

    def read(self, path: Path) -> Scene:
        """Reads one picture as (3, size, size) uint8; grayscale and enlarged ones are noted, so that they are counted."""
        size = self.source.size
        rgb = read_rgb(path)  # (H, W, 3)
        ratio = max(rgb.shape[:2]) // min(rgb.shape[:2])
        check_room(
            path, 4 * size * size * ratio, said=f"{rgb.shape[0]} x {rgb.shape[1]}, with the short side scaled to {size}"
        )
        pixels = np.ascontiguousarray(np.moveaxis(center_crop(rgb, size), 2, 0))  # (3, size, size)
        notes = {
            "grayscale": bool((rgb[..., 0] == rgb[..., 1]).all() and (rgb[..., 1] == rgb[..., 2]).all()),
            "enlarged": min(rgb.shape[:2]) < size,
        }
        place = Place(gsd_m=0.0)
        mask = np.full((size, size), Mask.VALID, dtype=np.uint8)
        array, located_mask = located(pixels, mask, bands=BANDS, place=place, units="byte")
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=sha256_file(path),
            pixels=array,
            mask=located_mask,
            place=place,
            label=self._labels[path],
            notes=tuple(note for note, holds in notes.items() if holds),
        )


def _check_apart(folder: Path, folders: list[Path]) -> None:
    """Refuses class folders of which one lies in another, or that hold the source itself, as links can: pictures of two labels.

    Raises:
        UserError: there is such a one.
    """
    owners: dict[Path, Path] = {}
    places = [(path, path.resolve()) for path in folders]
    for path, place in places:
        if owners.setdefault(place, path) != path:
            raise _within(path, owners[place])
    for path, place in [(folder, folder.resolve()), *places]:
        around = next((owners[one] for one in place.parents if one in owners), owners.get(place, path))
        if around != path:
            raise _within(path, around)


def _within(inner: Path, outer: Path) -> UserError:
    return problem(
        f"what is in {printable(str(inner))} is in another class folder too",
        got=f"{printable(str(outer))}, which leads to {printable(str(outer.resolve()))}",
        expected="class folders apart, so that a picture has one label",
        remedy="remove the link, or let it lead to a folder of one class",
    )
