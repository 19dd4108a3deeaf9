"""Rows of the table of scenes, one per file of a source, accepted or rejected."""

import os
from pathlib import Path
from typing import Any

from dithc.data.files import printable
from dithc.data.readers import scene_id
from dithc.data.scene import Rejection, Scene
from dithc.data.table import Kind

COLUMNS: dict[str, Kind] = {
    "scene_id": "text",
    "status": "text",
    "reason": "text",
    "what": "text",
    "got": "text",
    "expected": "text",
    "fix": "text",
    "stack": "int",
    "row": "int",
    "path": "text",
    "sha256": "text",
    "label": "int",
    "n_bands": "int",
    "height": "int",
    "width": "int",
    "dtype": "text",
    "gsd_m": "float",
    "crs": "text",
    "crs_epsg": "int",
    "transform": "floats",
    "valid_frac": "float",
    "product_id": "text",
    "satellite": "text",
    "sensor": "text",
    "sensing_time": "text",
    "baseline": "text",
    "level": "text",
    "offset_source": "text",
    "offsets": "floats",
    "notes": "text",
}


def accepted_row(scene: Scene, folder: Path) -> dict[str, Any]:
    place = scene.place
    return {
        "scene_id": scene.scene_id,
        "status": "accepted",
        "path": scene_id(scene.path, folder),
        "sha256": scene.sha256,
        "label": scene.label,
        "n_bands": len(scene.bands),
        "height": scene.mask.shape[0],
        "width": scene.mask.shape[1],
        "gsd_m": place.gsd_m,
        "crs": place.crs,
        "crs_epsg": place.epsg,
        "transform": None if place.transform is None else list(place.transform),
        "valid_frac": float((scene.mask != 0).mean()),
        "notes": " ".join(scene.notes),
        **scene.facts,
    }


def rejected_row(rejection: Rejection, folder: Path) -> dict[str, Any]:
    """Return the row of a rejected scene; like all rows, it does not contain the location of the source folder."""
    refused = rejection.refused
    path = scene_id(rejection.path, folder)
    told = {
        name: printable(getattr(refused, name).replace(str(rejection.path), path).replace(f"{folder}{os.sep}", ""))
        for name in ("what", "got", "expected", "fix")
    }
    return {
        "scene_id": rejection.scene_id,
        "status": "rejected",
        "path": path,
        "reason": str(refused.reason),
        **told,
    }
