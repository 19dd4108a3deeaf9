"""Rejected inputs of extractors, and the two resize modes against an independent implementation."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dithc.core.logging import UserError
from dithc.evaluate import Extractor, load_extractor
from dithc.evaluate.extractors.extractor import resize_images


def make_extractor(network: Callable[[torch.Tensor], torch.Tensor]) -> Extractor:
    return Extractor(name="n", kind="torchscript", sha256="", num_features=2, note="", network=network)


@pytest.mark.parametrize("size", [17, 299])
def test_clean_resize_equals_pillow_in_float(size: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 64, 50), dtype=np.uint8)
    # Positions up to 64 in float32 are off by 64 epsilon pixels, and neighbouring pixels differ by up to 255; factor 2.
    tolerance = 2 * 64 * np.finfo(np.float32).eps * 255
    ours = resize_images(torch.from_numpy(images), size=size, mode="clean").numpy()
    for image, resized in zip(images.reshape(-1, 64, 50), ours.reshape(-1, size, size), strict=True):
        pillow = Image.fromarray(image.astype(np.float32), mode="F").resize((size, size), Image.Resampling.BICUBIC)
        np.testing.assert_allclose(resized, np.asarray(pillow).clip(0, 255), rtol=0, atol=tolerance)


def test_legacy_resize_uses_pixel_centers_without_antialiasing() -> None:
    row = torch.arange(8, dtype=torch.uint8).view(1, 1, 1, 8).expand(1, 3, 8, 8)
    halved = resize_images(row, size=2, mode="legacy-pytorch")
    # output pixel j sits at (j + 0.5) * 4 - 0.5 = 1.5, 5.5: between its two neighbors only
    torch.testing.assert_close(halved[0, 0, 0], torch.tensor([1.5, 5.5]))


NOT_FINITE = "1 of 2 images, first at row 1"


@pytest.mark.parametrize(
    ("second", "message"), [([np.nan, 0.0], NOT_FINITE), ([np.inf, 0.0], NOT_FINITE), ([0.0] * 3, r"\(2, 2\)")]
)
def test_nonfinite_features_and_features_of_wrong_width_are_rejected(second: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_extractor(lambda x: torch.tensor([[0.0] * len(second), second]))(np.zeros((2, 3, 8, 8), dtype=np.uint8))


@pytest.mark.parametrize("kind", ["inception", "squeezenet", "torchscript", "classifier"])
def test_missing_weights_raise_an_error_without_fallback(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no other network replaces it"):
        load_extractor(kind, tmp_path / "absent.pth", trust=True)  # type: ignore[arg-type]


def test_folder_instead_of_a_weights_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder"):
        load_extractor("squeezenet", tmp_path)
