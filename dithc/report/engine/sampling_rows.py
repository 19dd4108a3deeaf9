"""What `dithc bench sampling` measured: one image by one rank and by several, as tables and as pictures to draw."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.report.documents import read_bench
from dithc.report.words import ABSENT, rounded, short, with_deviation

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
    "taylor-3": "cache: Taylor",
    "first-block": "cache: first block",
    "by-rows": "by rows",
    "apart": "rows apart",
}
RATIOS = {
    "speedup": "Speed-up over one rank",
    "over_side_by_side": "Of ranks that exchange nothing",
    "over_all_cores": "Over one process with all cores",
}
HEAD = ("Way", "Seconds", *RATIOS.values(), "Sent, MiB", "Output")
DECODE_HEAD = (*HEAD[:-1], "Peak of a rank, MiB", "Image")
IMAGE_HEAD = ("Way", "Seconds an image", "Images a second", *RATIOS.values(), "Image")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image (h, w, 3), and the relative difference (h, w) of its latent from that of one rank; None if bitwise equal."""

    label: str
    pixels: NDArray[np.uint8]
    difference: NDArray[np.float64] | None
    said: str


def read_sampling(path: Path) -> dict[str, Any]:
    """Read a result of `dithc bench sampling`; UserError if the file is no such result."""
    return read_bench(path, "sampling", part="cells", what="bench of sampling")


def sampling_parts(result: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return tables of cells, images and ways, and the conditions."""
    if not result:
        return {"tables": [], "images": [], "decoding": [], "ways": [], "conditions": {}}
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
        "decoding": [
            {"title": f"Decoded: {decoder_title(one)}", "head": list(DECODE_HEAD), "rows": _decoded_rows(one)}
            for one in decoders_of(result)
        ],
        "ways": [
            *([label_of(one["name"]), one["what"]] for one in result["contenders"]),
            *([f"decoding, {label_of(one['name'])}", one["what"]] for one in _decoding(result)["ways"]),
        ],
        "conditions": {
            "model": f"{settings['model']}, random weights, heads and gates too",
            "ranks": f"{ranks['ranks']} of {ranks['cpus']} thread(s), on one machine",
            "baseline": f"one rank with {ranks['cpus']} thread(s), while the others sleep",
            "turns": f"{settings['rounds']} of each, alternating, after warm-up; medians and their deviation",
            "load": f"{result['load_average'][0]:.2g} processes on average when it ended",
        },
    }


def speedups(result: Mapping[str, Any]) -> list[tuple[str, dict[str, tuple[float, float]]]]:
    """Return title, and speed-up over one rank with deviation by way, of each cell, image and decoder."""
    images = result["images"]
    parts = [(cell_title(cell), cell["rows"]) for cell in result["cells"]]
    parts += [(f"image of {images['steps']} steps,\n{cell_title(images)}", images["rows"])] if images else []
    parts += [(f"decoded: {decoder_title(one)}", one["rows"]) for one in decoders_of(result) if one["status"] == "ok"]
    found = [
        (
            title,
            {
                label_of(row["name"]): (row["speedup"]["median"], row["speedup"]["mad"])
                for row in rows
                if row["status"] == "ok" and row["name"] != BASE
            },
        )
        for title, rows in parts
    ]
    return [(title, ways) for title, ways in found if ways]


def pictures(result: Mapping[str, Any]) -> list[Picture]:
    """Return the pictures, that of one rank first; empty without images."""
    return _drawn(result["images"]) if result["images"] else []


def decoded_pictures(result: Mapping[str, Any]) -> list[tuple[str, list[Picture]]]:
    """Return the decoded pictures by decoder, that of one rank first."""
    return [(one["decoder"], _drawn(one)) for one in decoders_of(result) if one["status"] == "ok"]


def decoders_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements of each decoder."""
    found: list[dict[str, Any]] = _decoding(result)["decoders"]
    return found


def _decoding(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the decoding part; empty in older files."""
    found: Mapping[str, Any] = result.get("decoding") or {"decoders": [], "ways": []}
    return found


def _drawn(images: Mapping[str, Any]) -> list[Picture]:
    rows = {row["name"]: row for row in images["rows"]}
    return [
        Picture(
            label=label_of(name),
            pixels=np.asarray(pixels, np.uint8),
            difference=np.asarray(images["differences"][name]) / images["largest"]
            if name in images["differences"]
            else None,
            said="" if name == BASE else EQUAL if rows[name]["equal"] else said(rows[name]),
        )
        for name, pixels in images["pictures"].items()
    ]


def label_of(name: str) -> str:
    """Return the label of a way; its own name if unknown."""
    return LABELS.get(name, name)


def cell_title(cell: Mapping[str, Any]) -> str:
    """Describe a sampling cell."""
    guided = f"guidance {short(cell['guidance'])}" if cell["guidance"] != 1 else "not guided"
    return f"{cell['tokens']} tokens, {cell['dtype']}, {guided}"


def decoder_title(one: Mapping[str, Any]) -> str:
    """Describe a decoder."""
    return f"{one['size']:,} px, {one['decoder']} of width {one['width']}"


def said(row: Mapping[str, Any]) -> str:
    """Describe how an output compares with that of one rank."""
    if row["name"] == BASE:
        return "what others are compared with"
    if row["name"] == "apart":
        return f"another image, {row['difference']:.1e} of the largest number apart"
    if not row.get("alike", True):
        return f"NOT that of one rank: {row['difference']:.1e} of the largest number apart"
    compared = EQUAL if row["equal"] else f"within {row['difference']:.1e} of the largest number"
    if (ran := row.get("blocks_run")) is None:
        return compared
    return f"{'approximate' if ran < 1 else 'nothing was used again'}: {ran:.0%} of the blocks run, {compared}"


def _row(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [label_of(row["name"]), f"{ABSENT} ({row['reason']})", *[ABSENT] * (len(HEAD) - 2)]
    return [label_of(row["name"]), with_deviation(row["seconds"]), *_ratios(row), _sent(row), said(row)]


def _decoded_rows(one: Mapping[str, Any]) -> list[list[str]]:
    if one["status"] != "ok":
        return [[f"{ABSENT} ({one['reason']})", *[ABSENT] * (len(DECODE_HEAD) - 1)]]
    rows = []
    for row in one["rows"]:
        peak, ratio = row.get("peak_bytes"), row.get("peak_over_one_rank")
        memory = ABSENT if peak is None else rounded(max(peak) / MIB, digits=3)
        memory += "" if ratio is None else f" ({rounded(ratio, digits=3)} of one rank's)"
        rows.append(
            [label_of(row["name"]), with_deviation(row["seconds"]), *_ratios(row), _sent(row), memory, said(row)]
        )
    return rows


def _image_row(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [label_of(row["name"]), f"{ABSENT} ({row['reason']})", *[ABSENT] * (len(IMAGE_HEAD) - 2)]
    rate = rounded(row["images_per_second"], digits=3)
    return [label_of(row["name"]), with_deviation(row["seconds"]), rate, *_ratios(row), said(row)]


def _sent(row: Mapping[str, Any]) -> str:
    counts = list(row["sent"].values())
    return ABSENT if None in counts else rounded(sum(counts) / MIB, digits=3)


def _ratios(row: Mapping[str, Any]) -> list[str]:
    return [ABSENT if row.get(name) is None else with_deviation(row[name]) for name in RATIOS]
