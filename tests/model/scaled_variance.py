"""Variance of the cosine coefficients of an image, scaled by octave of frequencies, in float64."""

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def scaled_variance(coefficients: Array, variance: Array, *, level: Array, share: Array) -> Array:
    """Return the variance (C, H, W) that coefficients (C, H, W) of x_t have beyond the noise.

    Args:
        coefficients: Coefficients of the components of x_t minus the mean.
        variance: Variance (C, H, W) of the data.
        level: Noise level (C) of each component.
        share: Share (C) of the pixels that contribute.
    """
    _, height, width = variance.shape
    frequencies = [
        [math.hypot(k / height, m / width) * min(height, width) for m in range(width)] for k in range(height)
    ]
    octaves = np.floor(np.log2(np.maximum(0.5, frequencies)))
    result = variance.copy()
    for octave in np.unique(octaves):
        places = octaves == octave
        for component, (noise, part) in enumerate(zip(level, share, strict=True)):
            expected = max((1 - noise) ** 2 * variance[component, places].mean(), 1e-12)
            found = (coefficients[component, places] ** 2).mean() / part - noise**2
            weight = 1 / (1 + (noise**2 / expected) ** 2 * 2 / places.sum())
            result[component, places] *= np.clip(found / expected, 1e-3, 1e3) ** weight
    return result
