"""The classifier learns visible classes, is reproducible, and rejects unsuitable inputs."""

import errno
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dithc.core.artifacts import outputs
from dithc.core.logging import UserError, read_metrics
from dithc.evaluate import load_extractor, train_classifier
from dithc.evaluate.distances.frechet import fid
from dithc.evaluate.extractors import classifier, defects
from dithc.evaluate.extractors.classifier import Classifier
from dithc.evaluate.extractors.defects import DEFECTS
from dithc.evaluate.extractors.weights import read_state
from tests.evaluate.conftest import statistics


def striped(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images with stripes along rows (class 3) or columns (class 9)."""
    rng = np.random.default_rng(2)
    labels = np.where(np.arange(n) % 2 == 0, 3, 9)
    stripe = 60 * np.sign(np.sin(np.arange(16) * 1.6 + 0.3))
    patterns = {3: stripe[:, None], 9: stripe[None, :]}
    images = [128 + patterns[int(label)] + rng.normal(0, 25, (3, 16, 16)) for label in labels]
    return np.clip(images, 0, 255).astype(np.uint8), labels


@pytest.mark.slow
def test_classifier_learns_and_features_separate_the_classes(tmp_path: Path) -> None:
    images, labels = striped(96)
    path = tmp_path / "classifier.safetensors"
    numbers = train_classifier(images, labels, path=path, steps=40, seed=1, batch=32)
    assert numbers["classes"] == [3, 9]
    assert numbers["train_accuracy"] > 0.95
    extractor = load_extractor("classifier", path)
    assert (extractor.num_features, extractor.comparable_to_published, extractor.resize) == (128, False, "none")
    assert extractor.sha256 == numbers["sha256"]
    assert "not comparable" in extractor.note
    features = extractor(images)
    apart = np.linalg.norm(features[labels == 3].mean(axis=0) - features[labels == 9].mean(axis=0))
    assert apart > 2 * features[labels == 3].std(axis=0).mean()


def test_defects_allow_one_class_and_features_cover_all_stages(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    images, _ = striped(48)
    path = tmp_path / "c"
    numbers = train_classifier(images, np.zeros(48, dtype=np.int64), path=path, steps=8, batch=32, defects=True)
    assert "of 14 types, which is close to guessing" in lines.text  # eight steps are too few
    assert numbers["defects"] == list(DEFECTS)
    assert 0 <= numbers["defect_accuracy"] <= 1
    extractor = load_extractor("classifier", path)
    assert extractor.num_features == 32 + 64 + 128
    assert f"defects recognized {numbers['defect_accuracy']:.3f}" in extractor.note
    features = extractor(images)
    network = Classifier(1, len(DEFECTS))
    network.load_state_dict(read_state(path)[0])
    x = torch.from_numpy(images).double() / 127.5 - 1
    for stage, columns in enumerate(np.split(features, [32, 96], axis=1)):
        conv, norm = network.convs[stage].double(), network.norms[stage].double()
        x = torch.relu(norm(conv(x)))
        np.testing.assert_allclose(columns, x.mean(dim=(2, 3)).detach().numpy(), rtol=1e-3, atol=1e-4)


def fields(n: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return smooth fields with straight edges in a warm (class 1) or cold color (class 0)."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    places = np.linspace(-1, 1, 32)
    angles = rng.uniform(0, np.pi, (n, 1, 1))
    edges = (np.cos(angles) * places[:, None] + np.sin(angles) * places > rng.uniform(-0.5, 0.5, (n, 1, 1))) * 60.0
    warm = np.where(labels == 1, 40, -40)[:, None, None, None] * np.array([1, 0, -1])[:, None, None]
    images = 90 + edges[:, None] + warm + rng.normal(0, 10, (n, 3, 1, 1)) + rng.normal(0, 3, (n, 3, 32, 32))
    return np.clip(images, 0, 255).astype(np.uint8), labels


@pytest.mark.slow
def test_defect_classifier_detects_a_lattice_missed_by_a_class_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: DEFECTS[name] for name in ("lattice-8", "blur-8", "noise")}  # all defects require a thousand steps
    for module in (defects, classifier):
        monkeypatch.setattr(module, "DEFECTS", few)
    images, labels = fields(256, seed=0)
    real, others = (fields(256, seed=seed)[0] for seed in (1, 2))
    shifts = np.random.default_rng(3).normal(0, 8, (256, 3, 4, 4)).repeat(8, axis=2).repeat(8, axis=3)
    blocky = np.clip(others + shifts, 0, 255).astype(np.uint8)
    over_floor = []
    for steps, with_defects in ((60, False), (200, True)):
        numbers = train_classifier(images, labels, path=tmp_path / "c", steps=steps, batch=16, defects=with_defects)
        extractor = load_extractor("classifier", tmp_path / "c")
        a, b, c = (statistics(extractor(pixels)) for pixels in (real, others, blocky))
        over_floor.append(fid(a, c) / fid(a, b))
    assert numbers["train_accuracy"] > 0.95
    assert numbers["defect_accuracy"] > 0.7  # guessing reaches a third
    assert over_floor[1] > 3 * over_floor[0], over_floor


@pytest.mark.parametrize("with_defects", [False, True])
def test_same_seed_writes_equal_files_and_preserves_the_global_rng(tmp_path: Path, with_defects: bool) -> None:
    images, labels = striped(24)
    before = torch.random.get_rng_state()
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        train_classifier(images, labels, path=tmp_path / name, steps=4, seed=seed, batch=16, defects=with_defects)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert torch.equal(torch.random.get_rng_state(), before)


def test_one_class_is_rejected_without_writing_a_file(tmp_path: Path) -> None:
    images, _ = striped(6)
    with pytest.raises(UserError, match="at least two classes"):
        train_classifier(images, np.zeros(6, dtype=np.int64), path=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_tiny_images_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="4x4"):
        train_classifier(np.zeros((2, 3, 4, 4), dtype=np.uint8), np.array([0, 1]), path=tmp_path / "c")


def test_weights_without_classifier_keys_are_rejected(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="is not a classifier of dithc"):
        load_extractor("classifier", tmp_path / "other.safetensors")


def test_metrics_of_every_step_are_written_next_to_the_weights(tmp_path: Path) -> None:
    images, labels = striped(24)
    for steps in (5, 3):
        train_classifier(images, labels, path=tmp_path / "c", steps=steps, batch=16)
    rows = read_metrics(tmp_path / "metrics")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["lr"] > rows[-1]["lr"] > 0
    assert all(row["loss"] > 0 for row in rows)
    assert list((tmp_path / "metrics" / "tensorboard").glob("events.*"))


def test_file_size_limit_raises_oserror_and_preserves_earlier_weights(tmp_path: Path) -> None:
    images, labels = striped(24)
    path = tmp_path / "c"
    train_classifier(images, labels, path=path, steps=2, batch=16)
    before = path.read_bytes()
    (tmp_path / ".c.tmp.host.1").touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            train_classifier(images, labels, path=path, steps=2, seed=1, batch=16)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert path.read_bytes() == before
    assert {item.name for item in tmp_path.iterdir()} == {"c", "metrics", outputs.MARKER_FILE}
