"""Which band is red, green or near infrared, by its wavelength, and the indices that are made of them."""

from dithc.data import products

# Middle of each colour and how far from it a band's may be, in nm. Near infrared excludes the red edge (705 to 783) and the water
# vapour at 945.
ROLES_NM = {"green": (560.0, 30.0), "red": (660.0, 30.0), "near infrared": (835.0, 45.0)}
INDICES = {"NDVI": ("near infrared", "red"), "NDWI": ("green", "near infrared")}
"""(first - second) / (first + second): of vegetation (Rouse et al. 1974), of open water (McFeeters 1996)."""


def band_of(role: str, bands: products.Bands) -> int | None:
    """The band nearest to the middle of a colour; None where none is near enough or no wavelength is known."""
    middle, most = ROLES_NM[role]
    away = {place: abs(nm - middle) for place, nm in enumerate(bands.wavelengths_nm) if nm is not None}
    nearest = min(away, key=lambda place: away[place], default=None)
    return nearest if nearest is not None and away[nearest] <= most else None


def index_bands(name: str, bands: products.Bands) -> tuple[int, int] | None:
    """Both bands of an index; None where one is missing."""
    first, second = (band_of(role, bands) for role in INDICES[name])
    return None if first is None or second is None else (first, second)
