"""Roles of bands (red, green, near infrared) by wavelength, and the indices of these roles."""

from dithc.data import products

# Center of each role and the largest distance of a band, in nm. Near infrared excludes the red edge (705 to 783) and water vapor
# (945).
ROLES_NM = {"green": (560.0, 30.0), "red": (660.0, 30.0), "near infrared": (835.0, 45.0)}
INDICES = {"NDVI": ("near infrared", "red"), "NDWI": ("green", "near infrared")}
"""(first - second) / (first + second): vegetation (Rouse et al. 1974), open water (McFeeters 1996)."""


def band_of(role: str, bands: products.Bands) -> int | None:
    """Return the band nearest to the center of a role; None if it is too far or wavelengths are unknown."""
    center, limit = ROLES_NM[role]
    distances = {index: abs(nm - center) for index, nm in enumerate(bands.wavelengths_nm) if nm is not None}
    nearest = min(distances, key=lambda index: distances[index], default=None)
    return nearest if nearest is not None and distances[nearest] <= limit else None


def index_bands(name: str, bands: products.Bands) -> tuple[int, int] | None:
    """Return both bands of an index; None if a band is missing."""
    first, second = (band_of(role, bands) for role in INDICES[name])
    return None if first is None or second is None else (first, second)
