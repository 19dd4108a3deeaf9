"""Ingestion of all generated Sentinel-2 variants: level, baseline, satellite, and format before December 2016."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.cli import main
from dithc.config import datasets
from dithc.data.raster import read_raster
from dithc.data.scene import Mask, Reason, Rejection, Scene, SceneRejectedError
from tests.data.readers.scene_readers import reader
from tests.inputs.safe_variants import VARIANTS, write_variant
from tests.inputs.tables import read_rows

LEVEL1C = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12"]


@pytest.fixture(scope="session")
def make_variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Create a folder with one product of a variant."""
    root = tmp_path_factory.mktemp("variants")

    def make(variant: str) -> Path:
        if not (root / variant).exists():
            write_variant(root / variant, variant, seed=5)
        return root / variant

    return make


read_all, _, _ = reader(datasets.Sentinel2Source, kind="sentinel2")


def read(folder: Path, **settings: Any) -> list[Scene | SceneRejectedError]:
    return [found.error if isinstance(found, Rejection) else found for found in read_all(folder, **settings)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_ingested_with_level_baseline_and_offsets(
    make_variant: Callable[[str], Path], tmp_path: Path, config: Callable[..., Path], variant: str
) -> None:
    folder, kind = make_variant(variant), VARIANTS[variant]
    shown = {"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3}
    path = config(source={"kind": "sentinel2", "path": str(folder)}, rendering=shown, max_rejected_fraction=0.0)
    out = tmp_path / "out"
    assert main(["ingest", "--config", str(path), "--dataset", "set", "--out", str(out / "manifest.json")]) == 0
    rows = read_rows(out / "scenes.parquet")
    assert len(rows) == (2 if kind.long_names else 1)
    for row in rows:
        assert (row["status"], row["level"], row["baseline"]) == ("accepted", kind.level, kind.baseline)
        assert row["offsets"] == [-1000.0 if kind.baseline >= "04" else 0.0] * (13 if kind.level == "L1C" else 12)
        assert row["offset_source"] == ("xml" if kind.baseline >= "04" else "none")
        assert row["satellite"] == "Sentinel-2A"
        assert row["product_id"] in row["path"]
        stored = np.load(out / f"stack-{row['stack']:05d}.npy")[row["row"]]
        images = folder / row["path"] / ("IMG_DATA" if kind.long_names else "GRANULE")
        (file,) = [
            found for found in images.rglob("*_B04*.jp2") if "_20m" not in found.name and "_60m" not in found.name
        ]
        digital = read_raster(file)[0][0].astype(int)
        valid = digital > 0
        band = LEVEL1C.index("B04")
        np.testing.assert_array_equal(stored[band][valid], digital[valid] + int(row["offsets"][band]))


def test_granules_of_a_product_are_separate_georeferenced_scenes(make_variant: Callable[[str], Path]) -> None:
    folder = make_variant("l1c-granules")
    one, other = read(folder)
    assert one.place.transform != other.place.transform
    assert one.scene_id.split("/")[:2] == other.scene_id.split("/")[:2]
    assert one.sha256 != other.sha256


@pytest.mark.slow
def test_damaged_granule_does_not_affect_the_intact_granule(tmp_path: Path) -> None:
    write_variant(tmp_path / "files", "l1c-granules", seed=5)
    first = min((tmp_path / "files").glob("*.SAFE/GRANULE/*"))
    image = next(first.glob("IMG_DATA/*_B08.jp2"))
    image.write_bytes(image.read_bytes()[:-200])
    damaged, whole = read(tmp_path / "files")
    assert damaged.reason == Reason.CHECKSUM_MISMATCH
    assert whole.notes == ()


def test_zip_file_of_several_granules_is_rejected_with_an_unpack_fix(
    make_variant: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = make_variant("l1c-granules")
    product = next(folder.glob("*.SAFE"))
    shutil.make_archive(str(tmp_path / "files" / product.stem), "zip", folder, product.name)
    (found,) = read(tmp_path / "files")
    assert "unpack it" in found.fix


@pytest.mark.parametrize(
    ("variant", "clouds"), [("l1c", {"use_msk_classi": True}), ("l1c-2", {"mask": {}}), ("l1c-granules", {"mask": {}})]
)
def test_clouds_of_level_1c_are_masked_by_msk_classi_or_qa60(
    make_variant: Callable[[str], Path], variant: str, clouds: dict[str, Any]
) -> None:
    plain, *_ = read(make_variant(variant))
    masked, *_ = read(make_variant(variant), clouds=datasets.ProductCloudsConfig(**clouds))
    assert not (plain.mask == Mask.CLOUD).any()
    cloudy, blue = masked.mask == Mask.CLOUD, masked.pixels[masked.bands.index("B02")]
    assert 0.01 < cloudy.mean() < 0.3
    assert np.median(blue[cloudy]) > 2 * np.median(blue[masked.mask == Mask.VALID])


def test_old_file_name_of_the_scene_classification_is_accepted(
    make_variant: Callable[[str], Path], tmp_path: Path
) -> None:
    product = next(make_variant("l2a-2").glob("*.SAFE"))
    copy = tmp_path / "files" / product.name
    shutil.copytree(product, copy)
    (before,) = read(tmp_path / "files", checksum="skip")
    (images,) = copy.glob("GRANULE/*/IMG_DATA")
    for size in ("20m", "60m"):
        (path,) = images.glob(f"R{size}/*_SCL_{size}.jp2")
        path.rename(images / f"S2A_USER_SCL_L2A_TL_DTHC_20160402T071734_A004065_T50TLL_{size}.jp2")
    (after,) = read(tmp_path / "files", checksum="skip")
    np.testing.assert_array_equal(before.mask, after.mask)
