"""The comparison reports the values that qualify its score, and rejects incomplete sets."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dithc.core.logging import UserError
from dithc.evaluate import Extractor, compare_features, extract_features
from dithc.evaluate.distances.frechet import fid_floor
from tests.evaluate.conftest import image_set


@pytest.fixture
def folders(extractor: Extractor, images: np.ndarray, tmp_path: Path) -> tuple[Path, Path]:
    """Features of 60 real images and of 40 darker images."""
    real, generated = tmp_path / "real", tmp_path / "generated"
    extract_features(image_set(images, "r"), extractor, real, shard_size=16)
    extract_features(image_set(images[:40] // 2, "g"), extractor, generated)
    return real, generated


def features(folder: Path) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(folder.glob("shard-*.npy"))]).astype(np.float64)


def test_document_contains_score_floor_interval_and_warnings(folders: tuple[Path, Path]) -> None:
    real, generated = folders
    document = compare_features(real, generated, seed=3)
    x, y = features(real), features(generated)
    root = np.linalg.eigvals(np.cov(x.T) @ np.cov(y.T)).real
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(np.cov(x.T) + np.cov(y.T)) - 2 * np.sqrt(root).sum()
    assert document["fid"] == pytest.approx(expected, rel=1e-8)
    assert document["floor"] == pytest.approx(fid_floor([x], seed=3).fid, rel=1e-9)
    assert document["floor_n"] == [30, 30]
    assert (document["n_real"], document["n_generated"]) == (60, 40)
    assert (document["sha256"], document["resize"], document["comparable_to_published"]) == ("ab" * 32, "none", False)
    low, high = document["kid_interval"]
    assert low < document["kid"] < high
    assert list(document["detectability"]) == ["1/1"], "smaller scales have too few pixels"
    assert document["warnings"] == ["moments of the pixels"]
    json.dumps(document)


@pytest.mark.parametrize("count", [3, 4])
def test_missing_floor_is_reported_with_the_required_image_count(
    count: int, extractor: Extractor, images: np.ndarray, tmp_path: Path
) -> None:
    for name in "ab":
        extract_features(image_set(images[:count], name), extractor, tmp_path / name)
    document = compare_features(tmp_path / "a", tmp_path / "b")
    reasons = [text for text in document["warnings"] if "no floor of real half" in text]
    assert (document["floor"] is None) == (count < 4)
    assert reasons == (
        [f"no floor of real half against real half: it requires 4 real images, the set has {count}"]
        if count < 4
        else []
    )


def test_equal_sets_have_distance_zero_and_a_warning(folders: tuple[Path, Path]) -> None:
    document = compare_features(folders[0], folders[0])
    assert document["fid"] == pytest.approx(0, abs=1e-6)
    assert "real and generated images are the same set" in document["warnings"]


def test_few_images_of_a_comparable_extractor_add_a_warning(
    extractor: Extractor, images: np.ndarray, tmp_path: Path
) -> None:
    published = replace(extractor, comparable_to_published=True, note="published")
    for name in "ab":
        extract_features(image_set(images, name), published, tmp_path / name)
    warnings = compare_features(tmp_path / "a", tmp_path / "b")["warnings"]
    assert any("fewer than 10000 images" in text for text in warnings)


def test_incomplete_folder_is_rejected(folders: tuple[Path, Path]) -> None:
    (folders[1] / "features.json").unlink()
    for folder in (folders[1], folders[1] / "absent"):
        with pytest.raises(UserError, match="is incomplete"):
            compare_features(folders[0], folder)


def test_damaged_shard_is_rejected(folders: tuple[Path, Path]) -> None:
    shard = folders[0] / "shard-00001.npy"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"shard-00001\.npy cannot be used"):
        compare_features(*folders)


def test_statistics_of_a_different_feature_set_are_rejected(folders: tuple[Path, Path]) -> None:
    (folders[0] / "stats.npz").write_bytes((folders[1] / "stats.npz").read_bytes())
    with pytest.raises(UserError, match="does not belong to the features in its folder"):
        compare_features(*folders)
