"""What `dithc bench sampling` measured: one image by one rank and by several, as tables and as pictures to draw."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.log import problem
from dithc.report.documents import read_json
from dithc.report.words import rounded, short, with_deviation

ABSENT = "–"
EQUAL = "equal to the bit"
MIB = 1 << 20
BASE = "one-rank"
LABELS = {
    BASE: "one rank",
    "all-cores": "one process, all cores",
    "side-by-side": "each rank alone, at once",
    "cfg": "branches of guidance",
    "shared-kv": "shared K/V",
    "ulysses": "Ulysses",
    "ring": "ring",
}
HEAD = ("Way", "Seconds", "Speed-up over one rank", "Over one process with all cores", "Sent, MiB", "Output")
IMAGE_HEAD = ("Way", "Seconds an image", "Images a second", "Speed-up over one rank", "Over all cores", "Image")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image, and how far it is from that of one rank.

    Attributes:
        label: who made it.
        pixels: (h, w, 3) uint8.
        difference: (h, w), of the latent, over its largest number; None where it is equal to the bit.
        said: how it compares.
    """

    label: str
    pixels: NDArray[np.uint8]
    difference: NDArray[np.float64] | None
    said: str


def read_sampling(path: Path) -> dict[str, Any]:
    """What `dithc bench sampling --json` wrote.

    Raises:
        UserError: the file is unreadable, or something else.
    """
    content = read_json(path)
    if content.get("bench") != "sampling" or "cells" not in content:
        raise problem(
            f"{path} is no bench of sampling",
            got=f"keys {', '.join(content) or 'none'}",
            expected="what `dithc bench sampling --json` wrote, with `cells`",
            remedy="run the bench again, or leave out --sampling",
        )
    return content


def sampling_parts(result: Mapping[str, Any] | None) -> dict[str, Any]:
    """Tables (title, head, rows of texts) of cells, of the images, of what the ways are, and the conditions."""
    if not result:
        return {"tables": [], "images": [], "ways": [], "conditions": {}}
    settings, ranks, images = result["settings"], result["ranks"], result["images"]
    return {
        "tables": [
            {"title": cell_title(cell), "head": list(HEAD), "rows": [_row(row) for row in cell["rows"]]}
            for cell in result["cells"]
        ],
        "images": [
            {
                "title": f"An image of {images['steps']} steps, {cell_title(images)}",
                "head": list(IMAGE_HEAD),
                "rows": [_image_row(row) for row in images["rows"]],
            }
        ]
        if images
        else [],
        "ways": [[label_of(one["name"]), one["what"]] for one in result["contenders"]],
        "conditions": {
            "model": f"{settings['model']}, random weights, heads and gates too",
            "ranks": f"{ranks['ranks']} of {ranks['cpus']} thread(s), on one machine",
            "baseline": f"one rank with {ranks['cpus']} thread(s), while the others sleep",
            "turns": f"{settings['rounds']} of each, alternating, after warm-up; medians and their deviation",
            "load": f"{result['load_average'][0]:.2g} processes on average when it ended",
        },
    }


def speedups(result: Mapping[str, Any]) -> list[tuple[str, dict[str, tuple[float, float]]]]:
    """Of each cell its title and, by label of a way, the speed-up over one rank and its deviation."""
    return [
        (
            cell_title(cell),
            {
                label_of(row["name"]): (row["speedup"]["median"], row["speedup"]["mad"])
                for row in cell["rows"]
                if row["status"] == "ok" and row["name"] != BASE
            },
        )
        for cell in result["cells"]
    ]


def pictures(result: Mapping[str, Any]) -> list[Picture]:
    """The images to be drawn, that of one rank first; none where they were not made."""
    images = result["images"]
    if not images:
        return []
    rows = {row["name"]: row for row in images["rows"]}
    return [
        Picture(
            label=label_of(name),
            pixels=np.asarray(pixels, np.uint8),
            difference=np.asarray(images["differences"][name]) / images["largest"]
            if name in images["differences"]
            else None,
            said="" if name == BASE else said(rows[name]),
        )
        for name, pixels in images["pictures"].items()
    ]


def label_of(name: str) -> str:
    """The name of a way on the page; that in the file, where it is a new one."""
    return LABELS.get(name, name)


def cell_title(cell: Mapping[str, Any]) -> str:
    """What was sampled."""
    guided = f"guidance {short(cell['guidance'])}" if cell["guidance"] != 1 else "not guided"
    return f"{cell['tokens']} tokens, {cell['dtype']}, {guided}"


def said(row: Mapping[str, Any]) -> str:
    """How an output compares with that of one rank."""
    if row["name"] == BASE:
        return "what others are compared with"
    return EQUAL if row["equal"] else f"within {row['difference']:.1e} of the largest number"


def _row(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [label_of(row["name"]), f"{ABSENT} ({row['reason']})", *[ABSENT] * (len(HEAD) - 2)]
    counts = list(row["sent"].values())
    sent = ABSENT if None in counts else rounded(sum(counts) / MIB, digits=3)
    return [label_of(row["name"]), with_deviation(row["seconds"]), *_ratios(row), sent, said(row)]


def _image_row(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [label_of(row["name"]), f"{ABSENT} ({row['reason']})", *[ABSENT] * (len(IMAGE_HEAD) - 2)]
    rate = rounded(row["images_per_second"], digits=3)
    return [label_of(row["name"]), with_deviation(row["seconds"]), rate, *_ratios(row), said(row)]


def _ratios(row: Mapping[str, Any]) -> list[str]:
    return [ABSENT if row[name] is None else with_deviation(row[name]) for name in ("speedup", "over_all_cores")]
