"""TorchScript files that follow the contract are used; other files are rejected."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dithc.config import load, stage_spec
from dithc.core.logging import UserError
from dithc.evaluate import load_extractor


class Means(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class Maps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x.mean(dim=(2, 3)) - 1000)


class FixedSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 3 * 224 * 224)


class FileWriter(nn.Module):
    """A network that writes a file when it runs."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3)) + torch.from_file(self.path, True, 3)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[nn.Module], Path]:
    def write(network: nn.Module) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.script(network), str(tmp_path / "network.pt"))
        return tmp_path / "network.pt"

    return write


def test_script_receives_float_pixels_up_to_255(save: Callable[[nn.Module], Path]) -> None:
    extractor = load_extractor("torchscript", save(Means()), trust=True)
    images = np.full((3, 3, 40, 30), 255, dtype=np.uint8)
    images[:, 1] = 7
    assert (extractor.num_features, extractor.resize, extractor.comparable_to_published) == (3, "none", False)
    np.testing.assert_allclose(extractor(images), [[255, 7, 255]] * 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("network", "got"),
    [(Maps(), r"\(2, 3, 64, 64\)"), (Logarithm(), "NaN"), (FixedSize(), "invalid for input of size")],
)
def test_script_violating_the_contract_is_rejected(
    network: nn.Module, got: str, save: Callable[[nn.Module], Path]
) -> None:
    with pytest.raises(UserError, match=got):
        load_extractor("torchscript", save(network), trust=True)


def test_truncated_script_is_rejected(save: Callable[[nn.Module], Path]) -> None:
    path = save(Means())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UserError, match="cannot be read"):
        load_extractor("torchscript", path, trust=True)


def test_script_runs_only_with_trust_enabled(save: Callable[[nn.Module], Path], tmp_path: Path) -> None:
    left = tmp_path / "left-by-the-network"
    path = save(FileWriter(str(left)))
    with pytest.raises(UserError, match="is a program that runs with your rights") as caught:
        load_extractor("torchscript", path)
    assert "trust_code: true" in str(caught.value)
    with pytest.raises(UserError, match="is a program"):
        load_extractor("torchscript", tmp_path / "absent.pt")  # the file is not opened
    assert not left.exists()
    load_extractor("torchscript", path, trust=True)
    assert left.exists()  # shows the effect of trusted code


def test_trust_code_is_required_for_torchscript_and_rejected_elsewhere() -> None:
    asked = {"kind": "torchscript", "path": "network.pt"}
    for extractor, words in {
        "a": (asked, "set `trust_code: true` if you know the origin of network.pt"),
        "b": ({**asked, "trust_code": False}, "runs with your permissions"),
        "c": (
            {"kind": "squeezenet", "path": "x", "trust_code": True},
            "`trust_code` applies to `torchscript` files only",
        ),
    }.items():
        with pytest.raises(UserError, match=words[1]):
            load({"extractors": {extractor: words[0]}})
    trusted = load({"extractors": {"a": {**asked, "trust_code": True}}})
    assert "trust" not in str(stage_spec(trusted, "features", "a"))  # digests are unchanged
