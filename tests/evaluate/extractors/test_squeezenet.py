"""SqueezeNet with real weights recognizes photographs, and produces a distance end to end."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from dithc.core.logging import UserError
from dithc.evaluate import compare_features, extract_features, load_extractor
from dithc.evaluate.extractors.squeezenet import load_network
from tests.evaluate.conftest import image_set

WEIGHTS = "feat_squeezenet_v1.0/squeezenet_v1.0_decoded.safetensors"


@pytest.fixture
def path_to_weights(shared_data: Path) -> Path:
    path = shared_data / WEIGHTS
    if not path.is_file():
        pytest.skip(f"real SqueezeNet weights are absent: {path}")
    return path


def photographs(folder: Path, *, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return center crops (count, 3, size, size) and class numbers (count,)."""
    index = json.loads((folder / "imagenet_class_index.json").read_text())
    number = {wnid: int(key) for key, (wnid, _) in index.items()}
    files = sorted(folder.glob("n*/*.JPEG"))[:count]
    images = []
    for file in files:
        with Image.open(file) as opened:
            picture = opened.convert("RGB")
        scale = size * 1.128 / min(picture.size)
        wide, high = (round(side * scale) for side in picture.size)
        left, top = (wide - size) // 2, (high - size) // 2
        resized = picture.resize((wide, high), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
        images.append(np.asarray(resized).transpose(2, 0, 1))
    return np.stack(images), np.array([number[file.parent.name] for file in files])


@pytest.mark.slow
def test_photographs_are_classified_and_swapped_channels_reduce_accuracy(
    shared_data: Path, path_to_weights: Path
) -> None:
    images, labels = photographs(shared_data / "imagenet_sample", count=80, size=227)
    network = load_network(path_to_weights)
    with torch.inference_mode():
        scores = network.scores(torch.from_numpy(images).float()).numpy()  # (N, 1000)
        swapped = network.scores(torch.from_numpy(images[:24, ::-1].copy()).float()).numpy()
    top1 = np.mean(scores.argmax(axis=1) == labels)
    top5 = np.mean((np.argsort(scores, axis=1)[:, -5:] == labels[:, None]).any(axis=1))
    print(f"top-1 {top1:.3f}, top-5 {top5:.3f} of {len(labels)}")
    assert top1 > 0.6
    assert top5 > 0.8
    assert np.mean(swapped.argmax(axis=1) == labels[:24]) < np.mean(scores[:24].argmax(axis=1) == labels[:24])


@pytest.mark.slow
def test_photographs_have_a_lower_distance_than_noise_end_to_end(
    shared_data: Path, path_to_weights: Path, tmp_path: Path
) -> None:
    extractor = load_extractor("squeezenet", path_to_weights)
    images, _ = photographs(shared_data / "imagenet_sample", count=60, size=64)
    noise = np.random.default_rng(0).integers(0, 256, (30, 3, 64, 64), dtype=np.uint8)
    sets = {"real": images[:30], "other": images[30:], "noise": noise}
    for name, pictures in sets.items():
        numbers = extract_features(image_set(pictures, name), extractor, tmp_path / name, batch=16)
        assert numbers["num_features"] == 512
    near, far = (compare_features(tmp_path / "real", tmp_path / name) for name in ("other", "noise"))
    assert near["fid"] < far["fid"] / 2
    assert near["kid"] < far["kid"]
    assert near["floor_n"] == [15, 15]
    assert not near["comparable_to_published"]
    assert any("not on the Inception scale" in text for text in near["warnings"])
    assert any("rank-deficient" in text for text in near["warnings"])


@pytest.mark.slow
def test_default_resize_is_bicubic(shared_data: Path, path_to_weights: Path) -> None:
    """Compare with the enlargement of Pillow in float, as in clean-fid; the other mode is a different measure."""
    images, _ = photographs(shared_data / "imagenet_sample", count=6, size=64)
    network = load_network(path_to_weights)
    enlarged = [
        [
            np.asarray(Image.fromarray(band.astype(np.float32)).resize((227, 227), Image.Resampling.BICUBIC))
            for band in image
        ]
        for image in images
    ]
    with torch.inference_mode():
        wanted = network(torch.from_numpy(np.array(enlarged)).clamp(0, 255)).numpy()
    away = {}
    for resize in (None, "legacy-pytorch"):
        extractor = load_extractor("squeezenet", path_to_weights, resize=resize)
        away[extractor.resize] = np.linalg.norm(extractor(images) - wanted) / np.linalg.norm(wanted)
    assert away["clean"] < 1e-3
    assert away["legacy-pytorch"] > 0.02


def test_weights_with_wrong_keys_or_shapes_are_rejected(path_to_weights: Path, tmp_path: Path) -> None:
    state = load_file(path_to_weights)
    state["fire2/conv1x1_1.weight"] = torch.zeros(16, 64, 1, 1)
    del state["conv1.bias"]
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"1 missing: conv1\.bias; 1 wrong shape: fire2\.conv1x1_1\.weight"):
        load_extractor("squeezenet", tmp_path / "other.safetensors")
