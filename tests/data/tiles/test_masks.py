"""Masks of clear pixels, from scenes with clouds and gaps to tiles and latents."""

from pathlib import Path

import numpy as np
import pytest

from dithc.core.logging import UserError
from dithc.data import Tiles
from dithc.latents import Latents
from dithc.latents.codecs.codec import PixelCodec
from tests.data.tiles.test_tiles import Config, ingest_and_cut, rows_of

SIZE = 6  # 36 bits, which do not fill 5 bytes


def cut_scenes(tmp_path: Path, config: Config, *, masks: bool) -> tuple[Tiles, dict[str, np.ndarray]]:
    """Cut two scenes of 24 pixels with clouds brighter than the ground; return masks (0 clear, 1 cloud) too."""
    files, draws, truth = tmp_path / "files", np.random.default_rng(0), {}
    files.mkdir()
    for name in ("a", "b"):
        mask = (draws.random((24, 24)) < 0.4).astype(np.uint8)
        mask[:6] = 1
        mask[20:, 20:] = 255
        pixels = np.where(mask == 1, 9000, draws.integers(100, 900, (3, 24, 24))).astype(np.uint16)
        np.save(files / f"{name}.npy", pixels)
        np.save(files / f"{name}_mask.npy", mask)
        truth[f"{name}.npy"] = mask
    source = {"kind": "sentinel2-array", "path": str(files), "bands": ["R", "G", "B"], "units": "dn", "offset": 0}
    path = config(
        source=source | {"clouds": {"mask": {}}, "check_offset": False},
        tiles={"size": SIZE, "min_valid_fraction": 0.3, "max_cloud_fraction": 1.0, "masks": masks},
        split={"train_fraction": 1.0, "val_fraction": 0.0},
    )
    return ingest_and_cut(path, tmp_path), truth


def test_masks_of_tiles_and_latent_views_equal_those_of_the_scenes(tmp_path: Path, config: Config) -> None:
    tiles, truth = cut_scenes(tmp_path, config, masks=True)
    accepted = [row for row in rows_of(tmp_path) if row["status"] == "accepted"]
    clear = [truth[row["scene_id"]][row["y"] : row["y"] + SIZE, row["x"] : row["x"] + SIZE] == 0 for row in accepted]
    assert len(clear) == tiles.count == 2 * 12
    assert [row["y"] for row in rows_of(tmp_path) if row["reason"] == "too_cloudy"] == [0] * 8
    stored = np.unpackbits(tiles.column("mask"), axis=1)
    np.testing.assert_array_equal(stored[:, :36].reshape(-1, SIZE, SIZE), clear)
    values = np.concatenate(
        [pixels[:, mask] for pixels, mask in zip(tiles.stored(tiles.rows("all")), clear, strict=True)], axis=1
    )
    cloudy = [row["cloud_frac"] for row in accepted]
    np.testing.assert_allclose(tiles.conditions()["cloud"][:, 0], cloudy, rtol=1e-6)
    ends = [[band["low"], band["high"]] for band in tiles.info["statistics"]]
    np.testing.assert_allclose(ends, np.percentile(values, [1, 99], axis=1).T * 1e-4, rtol=1e-9)
    Latents.encode(tiles, PixelCodec(tiles.info), tmp_path / "latents", tiles_digest="d", views=8)
    latents, rows = Latents(tmp_path / "latents"), np.array([3, 1, 23])
    np.testing.assert_allclose(
        latents.conditions(rows, ["cloud"], views=rows % 8)[0][:, 0], np.array(cloudy)[rows], rtol=1e-6
    )
    assert latents.info["clear_fraction"] == pytest.approx(np.mean(clear))
    for view in range(8):
        turned = [np.rot90(np.fliplr(clear[row]) if view % 2 else clear[row], view // 2) for row in rows]
        np.testing.assert_array_equal(latents.clear(rows, views=np.full(3, view))[:, 0], turned)


def test_datasets_without_the_setting_have_no_masks_and_other_statistics(tmp_path: Path, config: Config) -> None:
    tiles, _ = cut_scenes(tmp_path, config, masks=False)
    assert set(tiles.info["columns"]) == {"split", "label"}
    assert tiles.conditions() == {}
    assert tiles.info["statistics"][0]["high"] == pytest.approx(0.9)
    Latents.encode(tiles, PixelCodec(tiles.info), tmp_path / "latents", tiles_digest="d")
    with pytest.raises(UserError, match="no masks of clear pixels"):
        Latents(tmp_path / "latents").clear(np.arange(2), views=np.zeros(2, np.int64))
