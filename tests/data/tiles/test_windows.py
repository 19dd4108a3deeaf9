"""Measurements of tiles, and prefetching of the next tiles."""

import threading

import numpy as np
import pytest

from dithc.data.prefetch import ahead
from dithc.data.scene import Mask
from dithc.data.tiles.windows import TileBatch, measure


@pytest.mark.parametrize("bands", [1, 3])
def test_tile_statistics_cover_only_the_valid_pixels_of_each_tile(bands: int) -> None:
    rng = np.random.default_rng(bands)
    pixels = rng.integers(-500, 9000, (4, bands, 100, 100)).astype(np.int16)
    mask = np.full((4, 100, 100), Mask.VALID, np.uint8)
    mask[1][rng.random((100, 100)) < 0.4] = Mask.INVALID
    mask[2] = Mask.INVALID
    mask[3, :50] = Mask.CLOUD
    zero = np.zeros(4, np.int64)
    found = measure(
        TileBatch(pixels=pixels, mask=mask, scene=[0] * 4, y=zero, x=zero, cells=[""] * 4, splits=[None] * 4)
    )
    for i in (0, 1, 3):
        valid = pixels[i][:, mask[i] != Mask.INVALID].astype(np.float64)
        assert found.mean[i].tolist() == valid.mean(axis=1).tolist()  # exact for integers
        np.testing.assert_allclose(found.std[i], valid.std(axis=1), rtol=1e-12)
    assert (found.valid_frac[2], *found.mean[2], *found.std[2]) == (0.0,) * (1 + 2 * bands)
    assert found.cloud_frac.tolist() == [0.0, 0.0, 0.0, 0.5]


def test_next_item_is_prefetched_by_a_thread_and_errors_are_raised() -> None:
    makers, two_is_made = [], threading.Event()

    def items():
        for number in range(3):
            makers.append(threading.current_thread())
            if number == 1:
                two_is_made.set()
            yield number
        raise ValueError("the fourth")

    given = ahead(items())
    assert next(given) == 0
    assert two_is_made.wait(60)  # before it is requested
    assert [next(given), next(given)] == [1, 2]
    with pytest.raises(ValueError, match="the fourth"):
        next(given)
    assert threading.current_thread() not in makers
