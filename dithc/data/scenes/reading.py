"""Reading of ingested scenes: memory-mapped stacks of pixels and masks, and the table of scenes.

Legend: n scenes of a stack, C bands, H, W scene.
"""

from pathlib import Path
from typing import Any

import numpy as np

from dithc.core.artifacts import Manifest
from dithc.core.integrity import parse_json
from dithc.core.logging import user_error
from dithc.data.npy_writer import open_npy
from dithc.data.parquet import read_columns
from dithc.data.scene import Array, Mask

TABLE_FILE, INDEX_FILE = "scenes.parquet", "scenes.json"
COLUMNS = ("scene_id", "status", "stack", "row", "label", "height", "width", "crs", "transform")
PROPERTY_COLUMNS = (
    *("gsd_m", "sensing_time", "satellite", "sensor", "level", "baseline"),
    *("sun_elevation", "sun_azimuth"),
)
"""Optional columns of the table."""


class Scenes:
    """Output of the stage `scenes`: the content of `scenes.json` (`index`), and columns of accepted scenes.

    Columns are in the order of (stack, row); the position is the scene's number. `firsts` are the numbers of the first scene
    of each stack, and the count. Raises UserError if a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.index: dict[str, Any] = parse_json(Manifest.verified(folder / INDEX_FILE).read_text())
            columns = read_columns(Manifest.verified(folder / TABLE_FILE), *COLUMNS, *PROPERTY_COLUMNS)
        except (OSError, ValueError) as error:
            raise user_error(
                f"the scenes in {folder} cannot be read",
                got=error,
                expected="the output of `dithc ingest`",
                fix="run `dithc ingest` again",
            ) from error
        order = sorted(
            (position for position, status in enumerate(columns["status"]) if status == "accepted"),
            key=lambda position: (columns["stack"][position], columns["row"][position]),
        )
        self.columns = {name: [values[position] for position in order] for name, values in columns.items()}
        self.count = len(order)
        counts = [stack["count"] for stack in self.index["stacks"]]
        self.firsts = np.concatenate([[0], np.cumsum(counts)]).astype(int).tolist()

    @property
    def has_gaps(self) -> bool:
        """True if a scene has clouds or pixels without data."""
        return any(stack["mask"] is not None for stack in self.index["stacks"])

    def stack(self, number: int) -> tuple[Array, Array]:
        """Return pixels (n, C, H, W) and mask (n, H, W) of a stack, memory-mapped."""
        return self._open(number, "file"), self._mask(number)

    def pixels_of(self, scene: int) -> Array:
        """Return the pixels (C, H, W) of a scene by its number, memory-mapped."""
        stack, row = self._place(scene)
        return np.asarray(self._open(stack, "file")[row])

    def mask_of(self, scene: int) -> Array:
        """Return the mask (H, W) of a scene by its number, memory-mapped."""
        stack, row = self._place(scene)
        return np.asarray(self._mask(stack)[row])

    def _place(self, scene: int) -> tuple[int, int]:
        stack = int(np.searchsorted(self.firsts, scene, side="right")) - 1
        return stack, scene - self.firsts[stack]

    def _mask(self, number: int) -> Array:
        """Return the mask (n, H, W) of a stack; a stack without a mask file is valid everywhere, and uses no memory."""
        if self.index["stacks"][number]["mask"] is not None:
            return self._open(number, "mask")
        count, _, height, width = self._open(number, "file").shape
        return np.broadcast_to(np.uint8(Mask.VALID), (count, height, width))

    def _open(self, number: int, kind: str) -> Array:
        entry = self.index["stacks"][number]
        return open_npy(Manifest.verified(self.folder / entry[kind]), count=entry["count"])
