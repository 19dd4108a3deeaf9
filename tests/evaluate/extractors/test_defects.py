"""Each defect has the effect of its name, in proportion to its level."""

import numpy as np
import pytest
import torch

from dithc.evaluate.extractors import defects
from dithc.evaluate.extractors.defects import DEFECT_SHARE, DEFECTS, damaged


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(count: int = 6, height: int = 32, width: int = 32) -> torch.Tensor:
    return 255 * torch.rand(count, 3, height, width, generator=generator(5))


def blocks(images: torch.Tensor, side: int) -> np.ndarray:
    """Return blocks (N, C, rows, columns, side * side) in float64, by slices."""
    array = images.double().numpy()
    rows, columns = array.shape[2] // side, array.shape[3] // side
    return np.stack(
        [
            [array[:, :, r * side : (r + 1) * side, c * side : (c + 1) * side] for c in range(columns)]
            for r in range(rows)
        ]
    ).transpose(2, 3, 0, 1, 4, 5).reshape(*array.shape[:2], rows, columns, side * side)  # fmt: skip


@pytest.mark.parametrize("side", [2, 4, 8])
def test_mosaic_equals_the_block_averages(side: int) -> None:
    images = random_images()
    found = blocks(DEFECTS[f"mosaic-{side}"](images, generator()), side)
    np.testing.assert_allclose(
        found, np.broadcast_to(blocks(images, side).mean(-1, keepdims=True), found.shape), rtol=1e-5
    )


@pytest.mark.parametrize("side", [2, 4, 8])
def test_lattice_shifts_each_block_by_a_separate_constant(side: int) -> None:
    images = random_images()
    shifts = blocks(DEFECTS[f"lattice-{side}"](images, generator()) - images, side)
    np.testing.assert_allclose(shifts, np.broadcast_to(shifts[..., :1], shifts.shape), atol=1e-3)
    values = shifts[..., 0].ravel()
    assert abs(values.std() / defects.STRENGTH - 1) < 5 / np.sqrt(2 * len(values))


@pytest.mark.parametrize("side", [4, 8, 16])
def test_shuffle_preserves_all_blocks_and_moves_most_blocks(side: int) -> None:
    images = random_images(height=48, width=32)
    before, after = (
        blocks(part, side).transpose(0, 2, 3, 1, 4).reshape(len(images), -1, 3 * side * side)
        for part in (images, DEFECTS[f"shuffle-{side}"](images, generator()))
    )
    for one, other in zip(before, after, strict=True):
        assert {row.tobytes() for row in one} == {row.tobytes() for row in other}
    assert (before != after).any(axis=-1).mean() > 0.5


def test_blur_preserves_a_plane_and_removes_detail_finer_than_a_block() -> None:
    plane = torch.linspace(0, 255, 32).expand(1, 3, 32, 32)
    board = 255.0 * ((torch.arange(32)[:, None] + torch.arange(32)) % 2).expand(1, 3, 32, 32)
    for side in (2, 4, 8):
        blur = DEFECTS[f"blur-{side}"]
        torch.testing.assert_close(blur(plane, generator())[..., 8:24], plane[..., 8:24], rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(blur(board, generator()), torch.full_like(board, 127.5))


def test_noise_has_the_set_strength_and_ringing_overshoots_an_edge() -> None:
    images = random_images(16)
    added = (DEFECTS["noise"](images, generator()) - images).double()
    assert abs(added.std().item() / defects.STRENGTH - 1) < 5 / (2 * added.numel()) ** 0.5
    edge = torch.where(torch.arange(32) < 15, 100.0, 150.0).expand(1, 3, 32, 32)
    ringing = DEFECTS["ringing"](edge, generator())
    assert ringing.min() < 100 - 1
    assert ringing.max() > 150 + 1


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.parametrize(("height", "width"), [(8, 8), (13, 9), (32, 20)])
def test_defects_preserve_shape_and_input_and_return_finite_values(name: str, height: int, width: int) -> None:
    images = random_images(2, height, width)
    before = images.clone()
    spoilt = DEFECTS[name](images, generator())
    assert spoilt.shape == images.shape
    assert bool(torch.isfinite(spoilt).all())
    assert torch.equal(images, before)


def test_level_is_the_blending_weight_of_the_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defects, "DEFECTS", {"black": lambda images, _: torch.zeros_like(images)})
    monkeypatch.setattr(defects, "MIN_CONTRAST", 1.0)  # no change of display
    images = random_images(40, 8, 8)
    spoilt, levels = damaged(images, generator())
    torch.testing.assert_close(spoilt, images * (1 - levels.view(-1, 1, 1, 1)), rtol=1e-5, atol=1e-3)
    assert torch.equal(spoilt[levels[:, 0] == 0], images[levels[:, 0] == 0])


def test_images_have_at_most_one_defect_at_the_configured_share() -> None:
    images = random_images(1000, 64, 64)  # every defect changes this image
    spoilt, levels = damaged(images, generator())
    assert spoilt.shape == images.shape
    assert (spoilt.min() >= 0, spoilt.max() <= 255) == (True, True)
    assert levels.shape == (len(images), len(DEFECTS))
    has = (levels > 0).sum(dim=1)
    assert set(has.tolist()) == {0, 1}
    assert abs(has.float().mean().item() - DEFECT_SHARE) < 5 * (DEFECT_SHARE * (1 - DEFECT_SHARE) / len(images)) ** 0.5
    drawn = levels[levels > 0].double()
    assert abs(drawn.mean().item() - 0.5) < 5 * (1 / 12 / len(drawn)) ** 0.5
    assert bool(((levels > 0).sum(dim=0) > 0).all())  # each defect occurs


def test_defect_without_effect_has_level_zero() -> None:
    """Tiles of 8 pixels have no two blocks of 8 or 16 to shuffle."""
    images = 255 * torch.rand(400, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    _, levels = damaged(images, torch.Generator().manual_seed(1))
    learnt = {name for name, level in zip(DEFECTS, levels.amax(dim=0), strict=True) if level > 0}
    assert set(DEFECTS) - learnt == {"shuffle-8", "shuffle-16"}
