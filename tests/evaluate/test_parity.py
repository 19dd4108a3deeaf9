"""Features and distances equal pytorch-fid and clean-fid, image by image, if these packages are installed.

Both Inceptions get the same random weights, so that the comparison requires no published file.
`pip install --target DIR --no-deps pytorch-fid clean-fid torchvision`, and DIR in PYTHONPATH, makes these tests run.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dithc.evaluate import load_extractor
from dithc.evaluate.distances.frechet import fid
from tests.evaluate.conftest import random_inception, statistics

WHY = "pytorch-fid, clean-fid and torchvision are not installed: nothing to compare with"
reference: Any = pytest.importorskip("pytorch_fid.inception", reason=WHY)
reference_fid: Any = pytest.importorskip("pytorch_fid.fid_score", reason=WHY)
reference_resize: Any = pytest.importorskip("cleanfid.resize", reason=WHY)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parity") / "random.pth"
    torch.save(random_inception(), path)
    return path


@pytest.fixture(scope="module")
def network(weights: Path) -> torch.nn.Module:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "load_state_dict_from_url", lambda *_, **__: torch.load(weights, weights_only=True))
        return reference.InceptionV3([reference.InceptionV3.BLOCK_INDEX_BY_DIM[2048]]).eval()  # type: ignore[no-any-return]


def textured_noise(seed: int, count: int) -> np.ndarray:
    """Return smooth noise with a texture by seed, uint8 (N, 3, 64, 64)."""
    rng = np.random.default_rng(seed)
    coarse = np.kron(rng.integers(0, 256, (count, 3, 8, 8)), np.ones((8, 8)))
    return np.clip(coarse + rng.normal(0, 10 + 20 * seed, coarse.shape), 0, 255).astype(np.uint8)


def max_relative_difference(features: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of a feature relative to the spread of features over images."""
    return float(np.abs(features - other).max() / other.std(axis=0).max())


@torch.inference_mode()
def test_features_equal_pytorch_fid(weights: Path, network: torch.nn.Module) -> None:
    images = textured_noise(0, 6)
    other = network(torch.from_numpy(images).float() / 255)[0].mean(dim=(2, 3)).numpy()
    assert max_relative_difference(load_extractor("inception", weights, resize="legacy-pytorch")(images), other) < 1e-4


@torch.inference_mode()
def test_features_with_clean_resize_equal_clean_fid(weights: Path, network: torch.nn.Module) -> None:
    images = textured_noise(1, 6)
    resize = reference_resize.build_resizer("clean")
    resized = np.stack([resize(image.transpose(1, 2, 0)) for image in images]).transpose(0, 3, 1, 2)
    other = network(torch.from_numpy(resized) / 255)[0].mean(dim=(2, 3)).numpy()
    assert max_relative_difference(load_extractor("inception", weights, resize="clean")(images), other) < 1e-4


def test_distance_equals_pytorch_fid(weights: Path) -> None:
    extractor = load_extractor("inception", weights)
    sets = [extractor(textured_noise(seed, 40))[:, ::128] for seed in (0, 1)]  # 16 features, fewer than the 40 images
    moments = [value for rows in sets for value in (rows.mean(axis=0), np.cov(rows, rowvar=False))]
    assert fid(*map(statistics, sets)) == pytest.approx(reference_fid.calculate_frechet_distance(*moments), rel=1e-3)
