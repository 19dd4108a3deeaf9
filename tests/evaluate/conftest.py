"""Fixtures of the evaluation tests: real data if present, log lines, and a cheap extractor."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dithc.evaluate import Extractor, ImageSet
from dithc.evaluate.extractors.inception import FIDInception
from dithc.evaluate.statistics import FeatureOrigin, Statistics


def image_set(images: NDArray[np.uint8], set_hash: str = "set", *, stretch: str = "s", **changes: Any) -> ImageSet:
    """Return a set of these images with numbers as names."""
    ids = list(range(len(images)))
    return ImageSet(
        **{
            "total": len(images),
            "set_hash": set_hash,
            "rendering_digest": stretch,
            "read": lambda rows: (images[rows], (0, 0)),
            "ids": ids,
            **changes,
        }
    )


def correlated(seed: int, n: int, d: int) -> np.ndarray:
    """Return n normal rows of d correlated features with a mean that is not 0."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


def statistics(rows: np.ndarray, **origin: str) -> Statistics:
    result = Statistics(rows.shape[1], origin=FeatureOrigin(**origin))
    result.update(rows)
    return result


def random_inception() -> dict[str, torch.Tensor]:
    """Return random weights of the Inception that produce features of moderate size that differ between images."""
    generator, state = torch.Generator().manual_seed(0), {}
    with torch.device("meta"):
        network = FIDInception()
    for name, value in network.state_dict().items():
        if name.endswith(("running_var", "bn.weight")):
            state[name] = 0.5 + torch.rand(value.shape, generator=generator)
        elif name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(0)
        else:
            fan_in = max(value.shape[1:].numel(), 1)
            scale = (2 / fan_in) ** 0.5 if value.ndim > 1 else 0.1
            state[name] = torch.randn(value.shape, generator=generator) * scale
    return state


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of real data, or skip."""
    folder = Path(os.environ.get("DITHC_TEST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data is absent: {folder} (set DITHC_TEST_DATA)")
    return folder


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Log lines of dithc, even if an earlier test has installed a handler."""
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    caplog.set_level(logging.INFO, "dithc")
    return caplog


class CountingNetwork:
    """Mean and spread per channel (N, 6), and a counter of images."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        pixels = images.float()  # (N, 3, H, W)
        return torch.cat([pixels.mean(dim=(2, 3)), pixels.std(dim=(2, 3))], dim=1)  # (N, 6)


@pytest.fixture
def network() -> CountingNetwork:
    return CountingNetwork()


@pytest.fixture
def extractor(network: CountingNetwork) -> Extractor:
    """An extractor of six features that counts its images."""
    return Extractor(
        name="moments",
        kind="torchscript",
        sha256="ab" * 32,
        num_features=6,
        note="moments of the pixels",
        network=network,
    )


@pytest.fixture
def images() -> NDArray[np.uint8]:
    return np.random.default_rng(5).integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)
