"""Reflectance of each land cover in the Sentinel-2 bands, and rendering of landscapes."""

import numpy as np
import numpy.typing as npt
import scipy.ndimage

from dithc.data.synthetic.cover import VEGETATION, Cover, Landscape
from dithc.data.synthetic.noise import F32

BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12")

# Surface reflectance in percent, typical of temperate farmland in early summer. The values are estimates that follow
# known features of spectra (green peak, red edge, water absorption). They are not suitable for scientific use.
SPECTRA_PERCENT: dict[Cover, tuple[float, ...]] = {
    Cover.WATER: (4.5, 5.2, 5.4, 3.6, 3.0, 2.2, 2.0, 1.8, 1.6, 1.5, 0.1, 0.9, 0.6),
    Cover.SAND: (9.5, 12.0, 16.5, 20.5, 22.5, 24.0, 25.0, 26.5, 27.5, 27.5, 0.3, 33.0, 29.0),
    Cover.MEADOW: (3.0, 4.2, 8.0, 5.8, 12.0, 26.0, 31.0, 33.0, 35.0, 35.0, 0.2, 22.0, 12.0),
    Cover.CROP_GREEN: (2.0, 2.8, 6.4, 3.0, 9.0, 33.0, 43.0, 45.0, 47.0, 47.0, 0.3, 19.0, 8.5),
    Cover.CROP_YOUNG: (4.5, 6.0, 9.8, 8.5, 14.0, 23.0, 27.0, 29.0, 31.0, 31.0, 0.2, 26.0, 17.0),
    Cover.CROP_RIPE: (6.0, 8.0, 13.5, 17.0, 21.0, 25.0, 28.0, 31.0, 33.0, 33.0, 0.2, 34.0, 22.0),
    Cover.RAPESEED: (3.2, 4.4, 15.5, 13.5, 20.0, 34.0, 40.0, 42.0, 43.0, 42.0, 0.2, 20.0, 10.0),
    Cover.STUBBLE: (7.5, 9.6, 13.8, 18.5, 22.0, 24.5, 26.5, 29.0, 31.0, 31.0, 0.2, 38.0, 29.0),
    Cover.SOIL: (4.6, 5.7, 8.4, 11.4, 13.2, 14.8, 16.4, 18.4, 19.6, 20.5, 0.2, 27.0, 23.0),
    Cover.HEDGE: (1.8, 2.4, 4.6, 2.6, 7.0, 20.0, 25.0, 27.0, 29.0, 29.0, 0.2, 14.0, 6.5),
    Cover.BROADLEAF: (1.5, 2.1, 4.3, 2.2, 6.5, 24.0, 31.0, 33.0, 35.0, 35.0, 0.2, 15.0, 6.5),
    Cover.CONIFER: (1.2, 1.7, 2.9, 1.8, 4.0, 12.0, 15.5, 17.0, 18.0, 19.0, 0.1, 8.5, 4.0),
    Cover.ROAD: (7.5, 8.5, 9.8, 10.5, 11.2, 11.8, 12.2, 13.0, 13.5, 14.0, 0.1, 15.5, 14.0),
    Cover.TRACK: (10.0, 12.5, 17.0, 20.5, 22.5, 24.0, 25.0, 27.0, 28.0, 28.0, 0.2, 34.0, 29.0),
    Cover.ROOF_TILE: (6.5, 7.5, 9.5, 16.5, 19.0, 20.5, 21.0, 23.0, 24.0, 24.0, 0.2, 28.0, 25.0),
    Cover.ROOF_GRAY: (12.0, 14.0, 15.0, 15.5, 16.0, 16.5, 17.0, 18.0, 18.5, 18.0, 0.1, 20.0, 18.0),
    Cover.ROOF_WHITE: (27.0, 30.0, 31.5, 32.0, 32.0, 32.0, 32.5, 33.0, 33.0, 32.0, 0.3, 31.0, 28.0),
    Cover.GARDEN: (3.0, 4.0, 6.2, 4.8, 9.0, 19.0, 23.0, 24.5, 26.0, 26.0, 0.2, 17.0, 10.0),
}

# Relative change of each band for one unit of vigor: more chlorophyll (darker red and blue), more leaf cells (brighter
# near infrared), more leaf water (darker short-wave infrared).
VIGOUR = (-0.12, -0.14, -0.06, -0.22, -0.08, 0.08, 0.13, 0.14, 0.14, 0.13, 0.0, -0.08, -0.14)

# Depth of shadows in each band. Skylight brightens shadows at short wavelengths (about wavelength^-4).
SHADOW = (0.70, 0.76, 0.84, 0.91, 0.93, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0, 1.0, 1.0)

# Blur of optics and detector in pixels: an MTF of about 0.2 at the Nyquist frequency, as Sentinel-2's bands have.
BLUR_PIXELS = 0.57


def reflectance(land: Landscape, rng: np.random.Generator, *, bands: tuple[str, ...] = BANDS) -> F32:
    """Render reflectance (len(bands), H, W) of a landscape, with noise per band."""
    table = np.array([SPECTRA_PERCENT[cover] for cover in Cover], dtype=np.float32) / np.float32(100)
    vigor = land.vigor * np.isin(land.cover, VEGETATION)
    image = np.empty((len(bands), *land.grid.shape), dtype=np.float32)
    for layer, name in zip(image, bands, strict=True):
        band = BANDS.index(name)
        light = 1 + np.float32(SHADOW[band]) * (land.shade - 1)
        clean = table[land.cover, band] * land.tone * (1 + np.float32(VIGOUR[band]) * vigor) * light  # (H, W)
        scipy.ndimage.gaussian_filter(clean, BLUR_PIXELS, output=layer, mode="nearest")
        layer += _sensor_noise(layer, rng)
    return image


def _sensor_noise(clean: F32, rng: np.random.Generator) -> F32:
    """Return noise of about 0.1% reflectance on dark, 0.3% on bright surfaces."""
    deviation = np.float32(0.0007) + np.float32(0.005) * np.sqrt(np.maximum(clean, 0) * np.float32(0.5))
    return rng.standard_normal(clean.shape, dtype=np.float32) * deviation


def true_color(red_green_blue: F32, *, white: float = 0.24) -> npt.NDArray[np.uint8]:
    """Convert reflectance (3, H, W) to uint8 (H, W, 3) with gamma 1.6."""
    levels = np.clip(red_green_blue / np.float32(white), 0, 1) ** np.float32(1 / 1.6)
    return np.ascontiguousarray(np.moveaxis(np.rint(levels * 255), 0, -1).astype(np.uint8))
