"""Scenes in .npz files: `pixels` (C, H, W) uint16, with acquisition `time` and `sun_elevation` (degrees).

A source lists its scenes and reads one scene. dithc does the rest: it reads in several processes, rejects scenes
without the declared bands and reports why, rereads only changed files, and cuts and splits by place. `python
dithc_npz.py FOLDER` writes sample scenes.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dithc.config.schema.datasets import PluginConditions, PluginSource
from dithc.data.readers.plugin import Raster
from dithc.data.scene import Georeference


class Npz(PluginSource):
    """Settings of `source: {kind: npz, path: ..., bands: [...]}`; every source has `path` and `bands`."""

    kind: Literal["npz"]
    gsd_m: float = Field(default=10.0, gt=0.0, le=1000.0)
    """Side of a pixel in meters."""

    def scenes(self, folder: Path) -> list[Path]:
        """Return the file of each scene, in a fixed order."""
        return sorted(folder.glob("*.npz"))

    def read(self, path: Path) -> Raster:
        """Read one scene; 0 marks missing data."""
        with np.load(path) as file:
            pixels, time, sun = file["pixels"], str(file["time"]), float(file["sun_elevation"])
        properties = {"sensing_time": time, "sun_elevation": sun}
        mask = (pixels > 0).all(axis=0).astype(np.uint8)
        return Raster(pixels=pixels, mask=mask, place=Georeference(gsd_m=self.gsd_m), properties=properties)


class Airmass(PluginConditions):
    """Condition of each tile: relative air mass of the sunlight, 1 at zenith. `conditions: [{kind: airmass}]`."""

    kind: Literal["airmass"]

    def model(self) -> list[dict[str, Any]]:
        """Return one table column, and the model input (v - center) / scale."""
        of = {"name": "airmass", "column": "airmass", "unit": "", "map": "linear", "center": 1.0, "scale": 1.0}
        return [of]

    def open(self) -> Callable[[Mapping[str, list[Any]]], Mapping[str, list[float | None]]]:
        """Return a function of known values of N tiles, such as `lon`, `lat`, `day_of_year`, `sun_elevation`."""

        def airmass(known: Mapping[str, list[Any]]) -> dict[str, list[float | None]]:
            angles = known.get("sun_elevation", [None] * len(known["scene_id"]))
            return {"airmass": [1.0 / np.sin(np.radians(angle)) if angle else None for angle in angles]}

        return airmass


def write_scenes(folder: Path, *, count: int = 4, side: int = 160) -> None:
    """Write scenes of four bands: waves of random lengths, and noise."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        draws = np.random.default_rng(number)
        waves = draws.normal(size=(6, 2)) / 8  # radians per pixel
        phases = np.tensordot(waves, np.mgrid[:side, :side], axes=1)  # (6, H, W)
        bands = np.tensordot(draws.normal(size=(4, 6)), np.cos(phases), axes=1)  # (4, H, W)
        pixels = np.clip(2000 + 300 * bands + 20 * draws.normal(size=bands.shape), 1, 10_000).astype(np.uint16)
        time = f"2024-0{number % 9 + 1}-15T10:00:00"
        np.savez(folder / f"scene-{number}.npz", pixels=pixels, time=time, sun_elevation=30.0 + 10.0 * number)


if __name__ == "__main__":
    parser = ArgumentParser(description="Write four scenes into a new folder.")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    write_scenes(parser.parse_args().folder)
