"""The features stage writes the same bytes for any partition or interruption, and repeats no work."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.core.artifacts import outputs
from dithc.core.logging import UserError
from dithc.evaluate import Extractor, extract_features
from dithc.evaluate.statistics import Statistics
from tests.evaluate.conftest import image_set


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*"))}


def run(extractor: Extractor, images: np.ndarray, folder: Path, **changes: Any) -> dict[str, Any]:
    """Extract `image_set` with these settings; `read` lists the images that were read."""
    settings: dict[str, Any] = {"batch": 7, "shard_size": 25}
    of_set = {name: changes.pop(name) for name in list(changes) if name not in ("batch", "shard_size", "group")}
    return dict(
        extract_features(
            image_set(images, **({"rendering_digest": "p1-p99"} | of_set)), extractor, folder, **(settings | changes)
        )
    )


def fail_to_read(_: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    raise AssertionError("images were read")


def test_shards_and_statistics_contain_the_features(extractor: Extractor, images: np.ndarray, tmp_path: Path) -> None:
    numbers = run(extractor, images, tmp_path)
    expected = extractor(images)
    arrays = [np.load(tmp_path / f"shard-0000{shard}.npy") for shard in range(3)]
    assert [array.shape for array in arrays] == [(25, 6), (25, 6), (10, 6)]
    assert arrays[0].dtype == np.float32
    np.testing.assert_allclose(np.concatenate(arrays), expected, rtol=1e-6)
    statistics = Statistics.load(tmp_path / "stats.npz")
    np.testing.assert_allclose(statistics.covariance(), np.cov(expected.astype(np.float64).T), rtol=1e-5, atol=1e-6)
    assert (statistics.n, statistics.origin.set_hash, statistics.origin.rendering_digest) == (60, "set", "p1-p99")
    assert (numbers["n"], numbers["extracted"], numbers["reused"], numbers["shards"]) == (60, 60, 0, 3)
    json.dumps(numbers)


def test_second_run_reuses_all_features(extractor: Extractor, network, images: np.ndarray, tmp_path: Path) -> None:
    run(extractor, images, tmp_path)
    before, seen = shards(tmp_path), network.seen
    numbers = run(extractor, images, tmp_path, read=fail_to_read)
    assert (numbers["extracted"], numbers["reused"], network.seen) == (0, 60, seen)
    assert shards(tmp_path) == before


def test_resumed_run_writes_the_same_bytes(extractor: Extractor, network, images: np.ndarray, tmp_path: Path) -> None:
    run(extractor, images, tmp_path / "whole")

    def breaking(rows: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
        if rows[-1] >= 40:
            raise KeyboardInterrupt
        return (images[rows], (0, 0))

    with pytest.raises(KeyboardInterrupt):
        run(extractor, images, tmp_path / "broken", read=breaking)
    assert not (tmp_path / "broken" / "features.json").exists()
    seen = network.seen
    numbers = run(extractor, images, tmp_path / "broken")
    assert (numbers["extracted"], network.seen - seen) == (35, 35)
    assert shards(tmp_path / "broken") == shards(tmp_path / "whole")


def test_corrupted_shard_is_reextracted_with_a_logged_reason(
    extractor: Extractor, network, images: np.ndarray, tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    run(extractor, images, tmp_path)
    good = shards(tmp_path)
    damaged = bytearray(good["shard-00001.npy"])
    damaged[-3] ^= 1
    (tmp_path / "shard-00001.npy").write_bytes(damaged)
    seen = network.seen
    run(extractor, images, tmp_path)
    assert network.seen - seen == 25
    assert shards(tmp_path) == good
    assert "shard-00001.npy again: its bytes do not match the sha256" in lines.text


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(lambda path: path.unlink(), "no sidecar"), (lambda path: path.write_text("{"), "sidecar is damaged")],
)
def test_shard_without_a_valid_sidecar_is_reextracted(
    damage, reason: str, extractor: Extractor, images: np.ndarray, tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    run(extractor, images, tmp_path)
    damage(tmp_path / "shard-00002.json")
    assert run(extractor, images, tmp_path)["extracted"] == 10
    assert reason in lines.text


@pytest.mark.parametrize("change", ["sha256", "set_hash", "rendering_digest", "shard_size"])
def test_shards_of_a_different_extractor_set_or_size_are_not_reused(
    change: str, extractor: Extractor, images: np.ndarray, tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    run(extractor, images, tmp_path)
    if change == "sha256":
        numbers = run(replace(extractor, sha256="cd" * 32), images, tmp_path)
    else:
        numbers = run(extractor, images, tmp_path, **{change: 30 if change == "shard_size" else "another"})
    assert numbers["extracted"] == 60
    expected = {"sha256": "sha256", "shard_size": "its n is 25, expected 30"}.get(change, change)
    assert expected in lines.text


def test_shards_of_an_earlier_larger_set_are_removed(extractor: Extractor, images: np.ndarray, tmp_path: Path) -> None:
    run(extractor, images, tmp_path)
    run(extractor, images[:30], tmp_path, set_hash="smaller")
    assert sorted(path.name for path in tmp_path.glob("shard-*.npy")) == ["shard-00000.npy", "shard-00001.npy"]
    assert not (tmp_path / "shard-00002.json").exists()


@pytest.mark.parametrize("total", [0, 1])
def test_sets_of_fewer_than_two_images_are_rejected(total: int, extractor: Extractor, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least two images"):
        run(extractor, np.zeros((total, 3, 8, 8), np.uint8), tmp_path)


def test_full_disk_leaves_earlier_shards_intact(
    extractor: Extractor, images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_save, calls = np.save, []

    def save(file, array) -> None:
        calls.append(1)
        if len(calls) == 4:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        real_save(file, array)

    monkeypatch.setattr(np, "save", save)
    with pytest.raises(OSError, match="No space left"):
        run(extractor, images, tmp_path)
    assert [path.name for path in outputs.files_of(tmp_path)] == [
        "shard-00000.json",
        "shard-00000.npy",
        "structure-00000.npy",
        "thumbnails-00000.npy",
    ]
    assert run(extractor, images, tmp_path)["reused"] == 25
