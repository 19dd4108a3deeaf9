"""Weights of the clean images predicted at several noise levels, for multistep solvers.

Let l be half the log of the signal-to-noise ratio and x0(l) the predicted clean image. Along the path to an image,

    x(l + h) = sigma' / sigma x(l) + alpha' (1 - exp(-h)) mean of x0 from l to l + h,

where the mean has the weight exp(l) (Lu et al. 2022, proposition 4.1). Its linear part is exact. A solver of order p
fits a polynomial through p values of x0.

Legend: h the stride; r = (level - l) / h, the place of a prediction in strides.
"""

import math
from collections.abc import Sequence

import numpy as np


def slope_weights(places: Sequence[float], *, stride: float) -> list[float]:
    """Return weights of the slopes (x0(r) - x0(0)) / r of predicted clean images.

    x0(0) plus the weighted sum of slopes is the mean over the stride h > 0.

    The mean is exact for polynomials of a degree up to the number of places. The weight of a single place is 1/2, the
    limit for short strides, as in DPM-Solver++(2M) and UniPC with B(h) = exp(h) - 1. Places r are distinct and nonzero:
    negative for earlier points of the path, 1 for the next.
    """
    if len(places) < 2:
        return [0.5] * len(places)
    mean, moments = -math.expm1(-stride), []
    moment = mean
    for degree in range(1, len(places) + 1):
        moment = 1 - degree / stride * moment  # integral of h exp((r - 1) h) r^degree from 0 to 1, by parts
        moments.append(moment / mean)
    powers = np.vander(places, increasing=True).T  # (degree - 1, place)
    weights: list[float] = np.linalg.solve(powers, np.array(moments)).tolist()
    return weights
