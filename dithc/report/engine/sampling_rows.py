"""Content of the figure of `dithc bench sampling`: speedups, and images with their differences from one rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EQUAL = "equal to the bit"
BASE = "one-rank"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image (h, w, 3), and the relative difference (h, w) of its latent from one rank; None if bitwise equal."""

    label: str
    pixels: NDArray[np.uint8]
    difference: NDArray[np.float64] | None


def speedups(result: Mapping[str, Any]) -> list[tuple[str, dict[str, tuple[float, float]]]]:
    """Return title, and speedup over one rank with deviation by variant, of each cell, image and decoder."""
    images = result["images"]
    parts = [(_title(cell), cell["rows"]) for cell in result["cells"]]
    parts += [(f"image of {images['steps']} steps,\n{_title(images)}", images["rows"])] if images else []
    parts += [(f"decoded: {one['size']:,} px, {one['decoder']}", one["rows"]) for one in _decoders(result)]
    found = [
        (
            title,
            {
                row["name"]: (row["speedup"]["median"], row["speedup"]["mad"])
                for row in rows
                if row["status"] == "ok" and row["name"] != BASE
            },
        )
        for title, rows in parts
    ]
    return [(title, variants) for title, variants in found if variants]


def _title(cell: Mapping[str, Any]) -> str:
    guided = f"guidance {cell['guidance']:g}" if cell["guidance"] != 1 else "not guided"
    return f"{cell['tokens']} tokens, {cell['dtype']}, {guided}"


def pictures(result: Mapping[str, Any]) -> list[Picture]:
    """Return the images, starting with one rank; empty without images."""
    return _drawn(result["images"]) if result["images"] else []


def decoded_pictures(result: Mapping[str, Any]) -> list[tuple[str, list[Picture]]]:
    """Return the decoded images by decoder, starting with one rank."""
    return [(one["decoder"], _drawn(one)) for one in _decoders(result)]


def _decoders(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for one in result["decoding"]["decoders"] if one["status"] == "ok"]


def _drawn(images: Mapping[str, Any]) -> list[Picture]:
    differences = images["differences"]
    return [
        Picture(
            label=name,
            pixels=np.asarray(pixels, np.uint8),
            difference=np.asarray(differences[name]) / images["largest"] if name in differences else None,
        )
        for name, pixels in images["pictures"].items()
    ]
