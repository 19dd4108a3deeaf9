"""Tests of the division of a scene: complete, aligned, and with weights that sum to one."""

import numpy as np
import pytest
import torch

from dithc.sample.restoration.blocks import blocks
from dithc.sample.seeds import noise_by_place


@pytest.mark.parametrize(
    ("shape", "size", "window", "multiple"),
    [((72, 56), 32, 16, 1), ((72, 57), 32, 16, 6), ((10, 100), 40, 16, 4), ((1, 1), 32, 16, 5), ((33, 64), 32, 16, 2)],
)
def test_blocks_cover_a_scene_once(shape: tuple[int, int], size: int, window: int, multiple: int) -> None:
    covered, weights = np.zeros(shape, int), np.zeros(shape)
    for block in blocks(shape, size=size, window=window, multiple=multiple):
        covered[block.rows.core, block.columns.core] += 1
        weights[block.rows.extent, block.columns.extent] += block.rows.weight[:, None] * block.columns.weight
        for span, length in ((block.rows, shape[0]), (block.columns, shape[1])):
            first, end = span.domain.start, span.domain.stop
            assert (first % multiple, end % multiple) == (0, 0)
            assert end - first >= window
            assert first <= max(0, span.core.start - window)
            assert end >= min(length, span.core.stop + window)
            assert span.core.stop - span.core.start <= size + multiple
    assert (covered == 1).all()
    np.testing.assert_allclose(weights, 1, atol=1e-6)


def test_noise_of_a_part_equals_the_noise_of_the_scene_at_its_place() -> None:
    whole = noise_by_place(3, [5, 9], (2, 100, 90))
    part = noise_by_place(3, [5, 9], (2, 50, 40), origin=(37, 20))
    for draw in (0, 2):
        assert torch.equal(part(draw), whole(draw)[:, :, 37:87, 20:60])
