"""Iteration over the images of a manifest for export: generated images and real tiles.

Legend: C bands, H, W image.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import Manifest
from dithc.core.logging import get_logger
from dithc.data import Tiles, products
from dithc.data.export.find_inputs import find_input, require_input
from dithc.data.export.generated import GeneratedImages

Clipped = npt.NDArray[np.int64]
TAG_NAMES = (
    *(
        "run",
        "image_size",
        "windows",
        "seam_ratio",
        "weights_description",
        "weights",
        "step",
        "seed",
        "codec",
        "sampler",
    ),
    *("steps", "guidance_scale"),
)
"""Numbers of the manifest that become tags."""
VALUES_PER_READ = 1 << 22  # values of a scene per read
# Local system in meters from a corner, so that programs can measure lengths and areas.
LOCAL_CRS = 'LOCAL_CS["generated, nowhere on Earth",UNIT["metre",1]]'
log = get_logger(__name__)


class GeneratedImageExport(GeneratedImages):
    """Generated images of a manifest, numbered for export."""

    @cached_property
    def tags(self) -> dict[str, str]:
        values = {"evaluation": self.manifest.name}
        values |= {name: self.manifest.summary[name] for name in TAG_NAMES if name in self.manifest.summary}
        if (time := self.manifest.summary.get("checkpoint")) is not None:
            values["checkpoint_time"] = time  # the tag `checkpoint` is the digest of the run
        if trained := find_input(self.path, self.manifest, stage="train"):
            values["checkpoint"] = trained[1].digest
        elif self.manifest.summary.get("step") is not None:
            log.warning(f"omitting the checkpoint tag: the training run of {self.path} was not found")
        return _common_tags(values, manifest=self.manifest, info=self.info)

    def images(self, numbers: Sequence[int]) -> Iterator[tuple[products.Image, Clipped]]:
        """Yield images, and their clipped values per band (final after the last row)."""
        for number in numbers:
            tags = self.tags | _image_tags(number, int(self.labels[number]), self.info)
            if self.are_scenes:
                yield self._scene(number, tags)
            else:
                pixels, clipped = self.bands.stored(self.physical(np.array([number])))  # (1, C, S, S), (C,)
                yield products.Image(name=f"image-{number:06d}", pixels=pixels[0], tags=tags), clipped

    def _scene(self, number: int, tags: dict[str, str]) -> tuple[products.Image, Clipped]:
        clipped: Clipped = np.zeros(len(self.bands.names), np.int64)
        bands, height, width = self.shape[1:]

        def rows() -> Iterator[npt.NDArray[Any]]:
            count = max(1, VALUES_PER_READ // (bands * width))
            for top in range(0, height, count):
                lines = slice(top, min(top + count, height))
                pixels, beyond = self.bands.stored(self.physical(np.array([number]), lines))
                clipped[:] += beyond
                yield pixels[0]  # (C, rows, W)

        gsd = self.info.get("gsd_m")
        return products.Image(
            name=f"image-{number:06d}",
            pixels=rows(),
            shape=(bands, height, width),
            tags=tags,
            crs=LOCAL_CRS if gsd else None,
            transform=(gsd, 0.0, 0.0, 0.0, -gsd, 0.0) if gsd else None,
        ), clipped


class RealTiles:
    """Accepted tiles of a manifest with place and mask, with the attributes and methods of `GeneratedImageExport` for export."""

    are_scenes = False

    def __init__(self, path: Path) -> None:
        self.manifest = Manifest.read(path, stage="tiles")
        self._tiles = Tiles(path.parent)
        self._scenes = products.Scenes(require_input(path, self.manifest, stage="ingest")[0].parent)
        self.bands, self.labels = products.Bands.of(self._tiles.info), self._tiles.labels
        size = self._tiles.info["size"]
        self.shape = (len(self.labels), len(self.bands.names), size, size)
        self._columns = self._tiles.accepted("tile_id", "scene_id", "y", "x", "split", "valid_frac")
        self._places = tile_places(self._columns, self._scenes)
        self._numbers = {scene_id: number for number, scene_id in enumerate(self._scenes.columns["scene_id"])}

    @cached_property
    def tags(self) -> dict[str, str]:
        return _common_tags({"dataset": self.manifest.name}, manifest=self.manifest, info=self._tiles.info)

    def images(self, numbers: Sequence[int]) -> Iterator[tuple[products.Image, Clipped]]:
        """Yield tiles, and the number of values per band that equal no data."""
        for number in numbers:
            pixels, valid = self._tiles.stored(np.array([number])), self._valid(number)  # (1, C, S, S), (S, S)
            integers, clipped = self.bands.kept(pixels if valid is None else np.where(valid, pixels, 0))
            crs, transform = self._places[number]
            tags = {name: str(self._columns[name][number]) for name in ("tile_id", "scene_id", "split")}
            tags = _format_tags(tags) | _image_tags(number, int(self.labels[number]), self._tiles.info)
            yield (
                products.Image(
                    name=f"tile-{number:06d}",
                    pixels=integers[0],
                    tags=self.tags | tags,
                    valid=valid,
                    crs=crs,
                    transform=transform,
                ),
                clipped,
            )

    def _valid(self, number: int) -> npt.NDArray[np.bool_] | None:
        if self._columns["valid_frac"][number] == 1.0:
            return None
        scene = self._numbers[self._columns["scene_id"][number]]
        y, x, size = self._columns["y"][number], self._columns["x"][number], self.shape[2]
        mask = self._scenes.mask_of(scene)[y : y + size, x : x + size]
        return np.asarray(mask != products.Mask.INVALID)


def _common_tags(values: dict[str, Any], *, manifest: Manifest, info: dict[str, Any]) -> dict[str, str]:
    values = {"version": version("dithc"), "stage": manifest.stage, "manifest": manifest.digest, **values}
    if info.get("gsd_m"):  # images of class folders have none
        values["gsd_m"] = info["gsd_m"]
    return {"TIFFTAG_SOFTWARE": f"dithc {values['version']}"} | _format_tags(values)


def _image_tags(number: int, label: int, info: dict[str, Any]) -> dict[str, str]:
    values: dict[str, Any] = {"index": number, "label": label}
    classes = info.get("classes", [])
    is_named = 1 < len(classes) > label  # clusters have no names
    return _format_tags(values | ({"class": classes[label]} if is_named else {}))


def _format_tags(values: dict[str, Any]) -> dict[str, str]:
    values = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in values.items()}
    return {f"DITHC_{name.upper()}": str(value) for name, value in values.items() if value is not None}


def tile_places(columns: dict[str, list[Any]], scenes: products.Scenes) -> list[tuple[str | None, Any]]:
    """Return coordinate system and affine coefficients of each tile."""
    rows = zip(*(scenes.columns[name] for name in ("scene_id", "crs", "transform")), strict=True)
    of_scene = {scene_id: (crs, transform) for scene_id, crs, transform in rows}
    places: list[tuple[str | None, Any]] = []
    for scene_id, y, x in zip(columns["scene_id"], columns["y"], columns["x"], strict=True):
        crs, transform = of_scene[scene_id]
        if transform is not None:
            a, b, c, d, e, f = transform
            transform = (a, b, c + a * x + b * y, d, e, f + d * x + e * y)
        places.append((crs, transform))
    return places
