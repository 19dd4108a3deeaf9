"""Interleaved decoding of one image by one rank and by several, then its peak memory in fresh processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.bench.sampling.contenders import BASE
from dithc.bench.sampling.decoders import APART, BY_ROWS, WAYS
from dithc.bench.sampling.processes import Crew
from dithc.bench.sampling.turns import Array, compared, in_turns, picture, rows, sent

ALIKE = 1e-5  # relative to the largest value; the order of sums alone causes smaller differences
DRAWN = BASE, BY_ROWS, APART
DRAWN_PIXELS = 64  # maximum side of stored images


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Image to decode: decoder channels, side in pixels, and timed rounds."""

    width: int
    size: int
    rounds: int


def timed(found: Crew, name: str, asked: Asked) -> dict[str, Any]:
    """Compare the images of all variants, which warms them up, then time them interleaved."""
    said = {"decoder": name, "size": asked.size, "width": asked.width}
    reasons = _opened(found, ("ranks", "alone"), name, asked)
    if reasons:
        return said | {"status": "skipped", "reason": reasons[0]}
    images: dict[str, Array] = {}
    told: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        answers = found.ask(way.where, "decoded", way.name)
        parts = [part for part, _ in answers if part.size]
        images[way.name] = np.concatenate(parts, axis=2)
        told[way.name] = compared([images[way.name]], images[BASE])
        told[way.name] |= {
            "alike": told[way.name]["difference"] < ALIKE,
            "sent": sent([counts for _, counts in answers]),
        }
    runs = {way.name: partial(_seconds, found, way.name, way.where) for way in WAYS}
    base = smaller(images[BASE])
    return said | {
        "status": "ok",
        "rows": rows(WAYS, in_turns(runs, asked.rounds), told, {}),
        "pictures": {way: picture(smaller(images[way]), base).tolist() for way in DRAWN},
        "differences": {
            way: far(images[way], images[BASE]).tolist()
            for way in DRAWN
            if not np.array_equal(images[way], images[BASE])
        },
        "largest": float(np.abs(images[BASE]).max()),
    }


def peaks(fresh: Crew, one: dict[str, Any], asked: Asked) -> dict[str, list[int] | None]:
    """Return peak bytes of each variant by rank; None without kernel support."""
    if one["status"] != "ok" or _opened(fresh, ("ranks",), one["decoder"], asked):
        return {}
    found: dict[str, list[int] | None] = {}
    for way in WAYS:
        if way.where != "alone":
            answers = fresh.ask(way.where, "peak", way.name)
            found[way.name] = None if None in answers else answers
    return found


def add_peaks(one: dict[str, Any], found: dict[str, list[int] | None]) -> None:
    """Add the peaks to the rows of a decoder, with the ratio to one rank."""
    alone = found.get(BASE)
    for row in one.get("rows", ()):
        mine = found.get(row["name"])
        row["peak_bytes"] = mine
        row["peak_over_one_rank"] = max(mine) / alone[0] if mine and alone and alone[0] > 0 else None


def smaller(image: Array) -> Array:
    """Downsample an image (1, C, H, W) by block means."""
    return np.asarray(_blocks(image).mean(axis=(3, 5)))


def far(image: Array, base: Array) -> NDArray[np.float32]:
    """Return the largest difference (h, w) in each block of `smaller`, with three significant digits."""
    most = _blocks(np.abs(image - base)).max(axis=(3, 5))[0].max(axis=0)
    return np.array([[float(f"{value:.3g}") for value in row] for row in most])


def _blocks(image: Array) -> Array:
    """Return blocks (1, C, h, k, w, k) of k x k pixels."""
    _, bands, height, width = image.shape
    each = max(1, max(height, width) // DRAWN_PIXELS)
    height, width = height // each, width // each
    return image[:, :, : height * each, : width * each].reshape(1, bands, height, each, width, each)


def _opened(crew: Crew, places: Sequence[Any], name: str, asked: Asked) -> list[str]:
    """Build a decoder in all processes. Return the reasons of failures."""
    answers = [crew.ask(where, "decoder", name, asked.width, asked.size) for where in places]
    return [reason for reasons in answers for reason in reasons if reason is not None]


def _seconds(found: Crew, name: str, where: Any) -> float:
    return float(max(found.ask(where, "decode", name, where)))
