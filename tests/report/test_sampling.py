"""One image by ranks and by one stands in the report: tables, dots, and images with their differences drawn."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.log import UserError
from dithc.report import write_report
from dithc.report.engine.sampling_rows import (
    EQUAL,
    decoded_pictures,
    pictures,
    read_sampling,
    said,
    sampling_parts,
    speedups,
)
from dithc.report.figures.sampling import draw_ways


def row(name: str, speedup: float, difference: float) -> dict[str, Any]:
    spread = {"median": speedup, "mad": 0.02}
    told = {"seconds": {"median": 2 / speedup, "mad": 0.01}, "speedup": spread, "over_all_cores": spread}
    told["over_side_by_side"] = {"median": speedup / 2, "mad": 0.01}
    sent = {"tcp_bytes": 0, "mpi_bytes": 3 << 20, "shared_bytes": 0}
    return {"name": name, "status": "ok", "equal": difference == 0, "difference": difference, "sent": sent} | told


ROWS = [
    row("one-rank", 1.0, 0.0),
    row("shared-kv", 1.9, 0.0),
    row("ring", 1.7, 4e-7),
    {"name": "cfg", "status": "skipped", "reason": "there is no guidance"},
    row("cached", 2.5, 0.01),
]
CACHED = row("taylor-3", 2.2, 0.02) | {"blocks_run": 0.4}
DECODED = [
    row("one-rank", 1.0, 0.0) | {"alike": True, "peak_bytes": [4 << 20], "peak_over_one_rank": 1.0},
    row("by-rows", 1.8, 4e-7) | {"alike": True, "peak_bytes": [2 << 20, 1 << 20], "peak_over_one_rank": 0.5},
    row("apart", 1.9, 0.2) | {"alike": False, "peak_bytes": None, "peak_over_one_rank": None},
]
PIXELS = [[[0, 128, 255]] * 4] * 4
RESULT = {
    "bench": "sampling",
    "settings": {"model": "DiT-S/2", "rounds": 3, "warmup": 1},
    "ranks": {"ranks": 2, "cpus": 1},
    "load_average": [1.5, 1.0, 1.0],
    "contenders": [{"name": "shared-kv", "what": "keys and values in words", "where": "ranks"}],
    "cells": [
        {"tokens": 256, "dtype": "fp32", "guidance": 4.0, "rows": ROWS},
        {"tokens": 1024, "dtype": "bf16", "guidance": 1.0, "rows": ROWS},
    ],
    "images": {
        "tokens": 16, "dtype": "fp32", "guidance": 4.0, "steps": 4, "largest": 2.0,
        "rows": [one | {"images_per_second": 0.5} for one in (*ROWS, CACHED)],
        "pictures": dict.fromkeys(("one-rank", "shared-kv", "ring"), PIXELS),
        "differences": {"ring": [[0.0, 0.0, 1e-6, 0.0]] * 4},
    },
    "decoding": {
        "ways": [{"name": "by-rows", "what": "rows in words"}],
        "decoders": [
            {
                "decoder": "sd-vae", "size": 1024, "width": 32, "status": "ok", "rows": DECODED, "largest": 2.0,
                "pictures": dict.fromkeys(("one-rank", "by-rows", "apart"), PIXELS),
                "differences": {"by-rows": [[1e-7] * 4] * 4, "apart": [[0.4] * 4] * 4},
            },
            {"decoder": "kl-vae", "size": 1024, "width": 32, "status": "skipped", "reason": "no memory"},
        ],
    },
}  # fmt: skip


def test_tables_say_what_is_equal_and_what_was_left_out() -> None:
    parts = sampling_parts(RESULT)
    rows = {cells[0]: cells[1:] for cells in parts["tables"][0]["rows"]}
    assert rows["shared K/V"] == ["1.053 ± 0.01", "1.9 ± 0.02", "0.95 ± 0.01", "1.9 ± 0.02", "3", EQUAL]
    assert rows["one rank"][-1] == "what others are compared with"
    assert rows["ring"][-1] == "within 4.0e-07 of the largest number"
    assert rows["branches of guidance"][0] == "– (there is no guidance)"
    assert "cached" in rows, "a way that the page has no name for yet"
    assert [part["title"] for part in parts["tables"]] == [
        "256 tokens, fp32, guidance 4",
        "1024 tokens, bf16, not guided",
    ]
    assert "one rank with 1 thread(s)" in parts["conditions"]["baseline"]
    assert sampling_parts(None)["tables"] == []
    assert sampling_parts(RESULT | {"images": None})["images"] == []
    assert (
        parts["images"][0]["rows"][-1][-1] == "approximate: 40% of the blocks run, within 2.0e-02 of the largest number"
    )
    decoded, skipped = parts["decoding"]
    rows = {cells[0]: cells[1:] for cells in decoded["rows"]}
    assert decoded["title"] == "Decoded: 1,024 px, sd-vae of width 32"
    assert rows["by rows"][-2:] == ["2 (0.5 of one rank's)", "within 4.0e-07 of the largest number"]
    assert rows["rows apart"][-2:] == ["–", "another image, 2.0e-01 of the largest number apart"]
    assert "no memory" in skipped["rows"][0][0]
    assert "NOT that of one rank" in said(DECODED[1] | {"alike": False})
    assert ["decoding, by rows", "rows in words"] in parts["ways"]
    assert sampling_parts({name: part for name, part in RESULT.items() if name != "decoding"})["decoding"] == []


def test_only_what_differs_has_a_difference_to_draw() -> None:
    one, shared, ring = pictures(RESULT)
    assert (one.difference, one.said, shared.difference, shared.said) == (None, "", None, EQUAL)
    assert ring.difference is not None
    assert ring.difference.max() == 5e-7, "over the largest number"
    found = speedups(RESULT)
    ways = {"shared K/V", "ring", "cached"}
    assert [set(drawn) for _, drawn in found] == [ways, ways, ways | {"cache: Taylor"}, {"by rows", "rows apart"}]
    ((name, decoded),) = decoded_pictures(RESULT)
    assert (name, [one.label for one in decoded]) == ("sd-vae", ["one rank", "by rows", "rows apart"])
    assert decoded[2].difference is not None
    assert decoded[2].difference.max() == 0.2
    assert draw_ways(found, pictures(RESULT), title="", ranks=2, decoded=[(name, decoded)])[:4] == b"\x89PNG"
    assert draw_ways(found, [], title="", ranks=2)[:4] == b"\x89PNG", "stopped before the images"


def test_another_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "sampling.json"
    path.write_text('{"bench": "step"}')
    with pytest.raises(UserError, match="no bench of sampling"):
        read_sampling(path)


@pytest.mark.slow
def test_the_page_has_tables_and_figure_where_it_was_measured(plant: Any, tmp_path: Path) -> None:
    tree = plant(tmp_path)
    tree.codec(tree.dataset("sentinel2"))
    path, out = tmp_path / "sampling.json", tmp_path / "report.html"
    path.write_text(json.dumps(RESULT))
    write_report(tree.experiment, tree.paths, out=out, sampling=path)
    assert "keys and values in words" in out.read_text()
    with_it = (tmp_path / "figures" / "sampling.png").stat().st_size
    write_report(tree.experiment, tree.paths, out=out)
    assert "keys and values in words" not in out.read_text()
    assert (tmp_path / "figures" / "sampling.png").stat().st_size < with_it / 2, (
        "it says in a line that nothing was run"
    )
