"""Hidden pixels in the shapes of real clouds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dithc.core.logging import user_error

Mask = NDArray[np.bool_]


def cloud_masks(
    masks: Mask, size: tuple[int, int], share: tuple[float, float], seed: int, numbers: Sequence[int]
) -> Mask:
    """Return crops (len(numbers), h, w) of masks (n, H, W), True for hidden pixels, mirrored at random.

    Crop i is drawn evenly from all crops with a hidden share in `share`. It depends on (seed, i) only, whatever the
    other numbers.

    Raises:
        UserError: `size` exceeds the masks, or no crop has a hidden share in `share`.
    """
    height, width = size
    sums = np.pad(masks.cumsum(axis=1, dtype=np.int64).cumsum(axis=2), ((0, 0), (1, 0), (1, 0)))  # (n, H + 1, W + 1)
    rows = sums[:, height:] - sums[:, :-height]
    shares = (rows[:, :, width:] - rows[:, :, :-width]) / (height * width)  # (n, H - h + 1, W - w + 1)
    found = np.flatnonzero((shares >= share[0]) & (shares <= share[1]))
    if not len(found):
        raise user_error(
            "cloud masks have no matching crop",
            got=f"{len(masks)} masks of {masks.shape[2]} x {masks.shape[1]} pixels, shares up to {masks.mean((1, 2)).max():.2f}",
            expected=f"a crop of {width} x {height} pixels with a hidden share from {share[0]:g} to {share[1]:g}",
            fix="use masks of a larger or cloudier dataset, a smaller size or a wider range of shares",
        )
    crops = np.empty((len(numbers), *size), bool)
    for crop, number in zip(crops, numbers, strict=True):
        draw, mirror = (int(word) for word in np.random.SeedSequence([seed, number]).generate_state(2, np.uint64))
        mask, top, left = np.unravel_index(found[draw % len(found)], shares.shape)
        steps = 1 - 2 * (mirror & 1), 1 - (mirror & 2)
        crop[:] = masks[mask, top : top + height, left : left + width][:: steps[0], :: steps[1]]
    return crops
