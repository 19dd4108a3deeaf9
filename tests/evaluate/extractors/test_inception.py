"""The FID Inception accepts files with the published key names only, and differs from the usual Inception as specified."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dithc.core.logging import UserError
from dithc.evaluate import load_extractor
from dithc.evaluate.extractors.inception import PUBLISHED_NAME, FIDInception, block_a, block_e, pool_3x3
from tests.evaluate.conftest import random_inception


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return random_inception()


@pytest.fixture(scope="module")
def path_to_weights(state: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inception") / "random_inception.pth"
    torch.save({name: value for name, value in state.items() if "num_batches" not in name}, path)
    return path


def test_parameter_count_equals_the_published_count(state: dict[str, torch.Tensor]) -> None:
    # torchvision's inception_v3 has 27,161,264: less the auxiliary head (3,326,696), plus eight classes of 2,049 numbers.
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    count = sum(value.numel() for name, value in state.items() if not name.endswith(statistics))
    assert count == 27_161_264 - 3_326_696 + 8 * 2_049


def test_key_names_and_shapes_equal_the_published_values(state: dict[str, torch.Tensor]) -> None:
    convolutions = [name for name in state if name.endswith(".conv.weight")]
    assert len(convolutions) == 94
    assert len([name for name in state if "num_batches" not in name]) == 94 * 5 + 2
    known = {
        "Conv2d_1a_3x3.conv.weight": (32, 3, 3, 3),
        "Conv2d_1a_3x3.bn.running_mean": (32,),
        "Conv2d_4a_3x3.conv.weight": (192, 80, 3, 3),
        "Mixed_5b.branch1x1.conv.weight": (64, 192, 1, 1),
        "Mixed_5b.branch5x5_2.conv.weight": (64, 48, 5, 5),
        "Mixed_5b.branch_pool.conv.weight": (32, 192, 1, 1),
        "Mixed_5d.branch3x3dbl_3.bn.weight": (96,),
        "Mixed_6a.branch3x3.conv.weight": (384, 288, 3, 3),
        "Mixed_6b.branch7x7_2.conv.weight": (128, 128, 1, 7),
        "Mixed_6e.branch7x7dbl_2.conv.weight": (192, 192, 7, 1),
        "Mixed_7a.branch7x7x3_4.conv.weight": (192, 192, 3, 3),
        "Mixed_7b.branch3x3_2a.conv.weight": (384, 384, 1, 3),
        "Mixed_7b.branch3x3_2b.conv.weight": (384, 384, 3, 1),
        "Mixed_7c.branch3x3dbl_3b.conv.weight": (384, 384, 3, 1),
        "fc.weight": (1008, 2048),
        "fc.bias": (1008,),
    }
    assert {name: tuple(state[name].shape) for name in known} == known


def test_average_pool_does_not_count_the_padding() -> None:
    ones = torch.ones(1, 2, 5, 5)
    torch.testing.assert_close(pool_3x3(ones, "average"), ones)


@torch.inference_mode()
def test_last_block_uses_max_pooling_and_earlier_blocks_average_pooling() -> None:
    x = torch.zeros(1, 8, 5, 5)
    x[..., 2, 2] = 9
    for pool, corner in (("max", 9.0), ("average", 1.0)):
        block = block_e(8, pool).eval()
        block.branch_pool = torch.nn.Identity()
        assert block(x)[0, -1, 1, 1].item() == corner
    network_pools = {name: block.pool for name, block in FIDInception().named_children() if name.startswith("Mixed_")}
    assert network_pools["Mixed_7c"] == "max"
    assert network_pools["Mixed_7b"] == network_pools["Mixed_5b"] == network_pools["Mixed_6c"] == "average"


def test_branches_are_joined_in_the_published_order() -> None:
    block = block_a(4, 32).eval()
    with torch.inference_mode():
        x = torch.rand(1, 4, 7, 7)
        parts = block(x).split([64, 64, 96, 32], dim=1)
        torch.testing.assert_close(parts[0], block.get_submodule("branch1x1")(x))
        torch.testing.assert_close(parts[3], block.branch_pool(pool_3x3(x, "average")))


@pytest.mark.slow
def test_features_are_2048_finite_numbers_that_depend_on_the_image(path_to_weights: Path) -> None:
    extractor = load_extractor("inception", path_to_weights)
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 40, 50), dtype=np.uint8)
    features = extractor(images)
    assert features.shape == (2, 2048)
    assert features.dtype == np.float32
    assert features.std(axis=1).min() > 0
    assert np.abs(features[0] - features[1]).max() > 1e-4
    alone = extractor(images[1:])
    np.testing.assert_allclose(alone[0], features[1], rtol=1e-3, atol=1e-4 * np.abs(features).max())


def test_unknown_weights_are_marked_incomparable(path_to_weights: Path) -> None:
    extractor = load_extractor("inception", path_to_weights, resize="clean")
    assert (extractor.kind, extractor.resize, extractor.comparable_to_published) == ("inception", "clean", False)
    assert "not comparable" in extractor.note


def test_weights_with_the_published_hash_are_marked_comparable(
    path_to_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dithc.evaluate.extractors.inception.sha256_file", lambda path: "6726825d" + "0" * 56)
    assert load_extractor("inception", path_to_weights).comparable_to_published


def test_published_file_name_with_a_wrong_hash_is_rejected(path_to_weights: Path) -> None:
    path = path_to_weights.with_name(PUBLISHED_NAME)
    path.hardlink_to(path_to_weights)
    with pytest.raises(UserError, match="6726825d"):
        load_extractor("inception", path)


def test_torchvision_weights_are_rejected_with_a_hint(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    small = {name: torch.zeros(1) for name in state}
    small |= {"fc.weight": torch.zeros(1000, 2048), "AuxLogits.fc.weight": torch.zeros(1000, 768)}
    torch.save(small, tmp_path / "inception_v3_google.pth")
    with pytest.raises(UserError, match="torchvision's Inception weights are NOT the FID weights") as error:
        load_extractor("inception", tmp_path / "inception_v3_google.pth")
    assert "unknown: AuxLogits.fc.weight" in str(error.value)


@pytest.mark.parametrize("content", [[1, 2], {"state": {"fc.weight": 3}}])
def test_file_without_a_state_dict_is_rejected(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(UserError, match="does not contain a state dict"):
        load_extractor("inception", tmp_path / "other.pth")


def test_weights_file_with_pickled_code_is_rejected(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pth")
    with pytest.raises(UserError, match="cannot be read"):
        load_extractor("inception", tmp_path / "module.pth")
