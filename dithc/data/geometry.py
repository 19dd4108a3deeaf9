"""Types and constants of georeferenced pixels, for modules that need no coordinate transformations."""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
GeoTransform = tuple[float, float, float, float, float, float]
"""Affine coefficients (a, b, c, d, e, f): x = a * column + b * row + c, y = d * column + e * row + f."""
SEMI_MAJOR_M, ECCENTRICITY_2 = 6378137.0, 0.00669437999014
"""WGS84: equatorial radius and squared eccentricity. The least radius of curvature is a (1 - e^2), at the equator."""
