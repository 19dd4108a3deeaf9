"""The figure of one image on one rank and on several ranks: speedups, and images with their differences."""

from typing import Any

from dithc.report.figures.benchmarks.sampling import draw_variants, sample_images, speedups
from dithc.report.figures.canvas import render_png


def row(name: str, speedup: float) -> dict[str, Any]:
    return {"name": name, "status": "ok", "speedup": {"median": speedup, "mad": 0.02}}


ROWS = [row("one-rank", 1.0), row("shared-kv", 1.9), row("ring", 1.7), {"name": "cfg", "status": "skipped"}]
PIXELS = [[[0, 128, 255]] * 4] * 4
RESULT: dict[str, Any] = {
    "settings": {"model": "DiT-S/2"},
    "ranks": {"ranks": 2, "cpus": 1},
    "cells": [{"tokens": 256, "dtype": "fp32", "guidance": 4.0, "rows": ROWS}],
    "images": {
        "tokens": 16, "dtype": "fp32", "guidance": 1.0, "steps": 4, "largest": 2.0, "rows": [*ROWS, row("taylor-3", 2.2)],
        "images": dict.fromkeys(("one-rank", "shared-kv", "ring"), PIXELS),
        "differences": {"ring": [[0.0, 0.0, 1e-6, 0.0]] * 4},
    },
    "decoding": {
        "decoders": [
            {
                "decoder": "sd-vae", "size": 1024, "status": "ok", "rows": [row("one-rank", 1.0), row("by-rows", 1.8)],
                "largest": 2.0, "images": dict.fromkeys(("one-rank", "by-rows"), PIXELS),
                "differences": {"by-rows": [[0.4] * 4] * 4},
            },
            {"decoder": "kl-vae", "size": 1024, "status": "skipped", "reason": "no memory"},
        ],
    },
}  # fmt: skip


def test_differences_and_speedups_of_variants() -> None:
    one, shared, ring = sample_images(RESULT["images"])
    assert (one.difference, shared.difference) == (None, None)
    assert ring.difference is not None
    assert ring.difference.max() == 5e-7, "relative to the largest number"
    found = speedups(RESULT)
    assert [(title, set(drawn)) for title, drawn in found] == [
        ("256 tokens, fp32, guidance 4", {"shared-kv", "ring"}),
        ("image of 4 steps,\n16 tokens, fp32, not guided", {"shared-kv", "ring", "taylor-3"}),
        ("decoded: 1,024 px, sd-vae", {"by-rows"}),
    ]
    assert render_png(lambda: draw_variants(RESULT))[:4] == b"\x89PNG"
    stopped = {**RESULT, "images": {}, "decoding": {"decoders": []}}
    assert render_png(lambda: draw_variants(stopped))[:4] == b"\x89PNG", "stopped before the images"
