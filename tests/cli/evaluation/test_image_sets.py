"""Pixels measured for a set of images: only complete tiles count."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from dithc.cli import main
from dithc.cli.evaluation.image_sets import open_source
from dithc.config import load
from dithc.core.logging import UserError
from dithc.engine.comm import Group
from dithc.evaluate import measure_pixels
from dithc.evaluate.pixels.pixel_file import read

BANDS, SIDE = ["B04", "B08"], 16


def source_of(root: Path, chips: np.ndarray):
    """Open tiles of DN (n, C, H, W), 0 without data, as `dithc features` does."""
    data = root / "chips"
    data.mkdir(parents=True)
    for number, chip in enumerate(chips):
        np.save(data / f"chip-{number}.npy", chip)
    kind = {"kind": "sentinel2-array", "path": str(data), "bands": BANDS, "units": "dn", "offset": 0, "gsd_m": 10}
    display = {"bands": ["B04", "B04", "B08"], "low": 0, "high": 1}
    settings = {"title": "Chips", "source": kind, "tiles": {"size": SIDE}, "rendering": display, "codec": "pixels"}
    (root / "config.json").write_text(
        json.dumps({"datasets": {"set": settings}, "codecs": {"pixels": {"kind": "pixel"}}})
    )
    arguments = ["--config", str(root / "config.json"), "--dataset", "set"]
    scenes, tiles = (str(root / name / "manifest.json") for name in ("scenes", "tiles"))
    assert main(["ingest", *arguments, "--out", scenes]) == 0
    assert main(["tiles", *arguments, "--scenes", scenes, "--out", tiles]) == 0
    args = Namespace(tiles=Path(tiles), samples=None, split="all", num_images="all")
    return open_source(args, load(root / "config.json"))


def test_tiles_with_missing_pixels_are_not_measured(tmp_path):
    chips = np.random.default_rng(0).integers(500, 9000, (5, len(BANDS), SIDE, SIDE)).astype(np.uint16)
    chips[[1, 3], :, 0, :5] = 0
    source = source_of(tmp_path, chips)
    assert source.needed.whole.tolist() == [0, 2, 4]
    assert source.shown().total == 5  # features include all tiles
    measured = source.needed.without_gaps()
    measure_pixels(measured.stored, measured.labels, tmp_path, bands=measured.bands, set_hash="", group=Group())
    pixels = read(tmp_path)
    assert pixels.class_pixels.tolist() == [3 * SIDE**2]
    assert pixels.class_sums.tolist() == [chips[[0, 2, 4]].sum(axis=(0, 2, 3), dtype=np.int64).tolist()]
    assert pixels.first == chips[[0, 2, 4]].min()  # not 0
    np.testing.assert_array_equal(measured.physical(np.array([1])), source.needed.physical(np.array([2])))


def test_set_without_complete_tiles_is_rejected_and_complete_set_kept(tmp_path):
    chips = np.random.default_rng(1).integers(500, 9000, (2, len(BANDS), SIDE, SIDE)).astype(np.uint16)
    whole = source_of(tmp_path / "whole", chips)
    assert whole.needed.without_gaps() is whole.needed
    chips[:, :, 0, 0] = 0
    with pytest.raises(UserError, match="2 tiles, each with pixels without data"):
        source_of(tmp_path / "gaps", chips).needed.without_gaps()
