"""An extractor of an installed package returns the features of its network, and is checked before use."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.core.logging import UserError
from dithc.evaluate import Extractor, load_extractor
from tests.plugin_packages import MODULE, ChannelMeans, install_plugin


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, monkeypatch, extractors={"means": f"{MODULE}:ChannelMeans"})


def load_means(**settings: Any) -> Extractor:
    return load_extractor(ChannelMeans.model_validate({"kind": "means"} | settings))


def test_features_equal_the_network_output() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 40, 48), dtype=np.uint8)
    extractor = load_means()
    means = images.astype(np.float64).mean(axis=(2, 3))
    np.testing.assert_allclose(extractor(images), np.concatenate([means, means**2], axis=1), rtol=1e-5)
    assert (extractor.num_features, extractor.resize, extractor.comparable_to_published) == (6, "none", False)
    assert "mine 1.0" in extractor.note


def test_hash_depends_on_package_version_and_weight_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"one")
    hashes = [load_means().sha256, load_means(path=str(weights)).sha256]
    weights.write_bytes(b"two")
    hashes += [load_means(path=str(weights)).sha256]
    monkeypatch.setattr("sys.path", [one for one in __import__("sys").path if "site-mine" not in one])
    install_plugin(tmp_path, monkeypatch, version="1.1", extractors={"means": f"{MODULE}:ChannelMeans"})
    assert len({*hashes, load_means().sha256}) == 4


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("raises", "weights"),
        ("batch", "vary with the batch or between calls"),
        ("chance", "vary with the batch or between calls"),
        ("shape", r"fails on a \(2, 3, 64, 64\) batch"),
        ("nan", "NaN or infinity"),
    ],
)
def test_network_violating_the_contract_is_rejected(defect: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_means(defect=defect)
