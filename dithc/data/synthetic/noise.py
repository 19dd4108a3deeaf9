"""Random numbers and random fields of the landscapes. The same seed produces the same bits in every process."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.ndimage

F32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


def generator(seed: int, *branch: int) -> np.random.Generator:
    """Return the generator of one branch (kind, scene, purpose, ...) of a seed."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy=seed, spawn_key=branch)))


@dataclass(frozen=True)
class PixelGrid:
    """Pixel grid of a scene, `height` x `width` pixels of `gsd` meters."""

    height: int
    width: int
    gsd: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def extent_m(self) -> float:
        return max(self.shape) * self.gsd

    def coordinates(self) -> tuple[F32, F32]:
        """Return x (right) and y (down) of all pixel centers in meters, each (H, W)."""
        rows, columns = np.indices(self.shape, dtype=np.float32)
        gsd = np.float32(self.gsd)
        return (columns + np.float32(0.5)) * gsd, (rows + np.float32(0.5)) * gsd


def fractal(rng: np.random.Generator, grid: PixelGrid, *, largest_m: float, slope: float = 1.7) -> F32:
    """Return noise (H, W) with amplitude frequency^-slope, mean 0 and deviation 1."""
    return _filtered(rng, grid, lambda f: (f * f + 1.0 / largest_m**2) ** (-slope / 2))


def band_pass(rng: np.random.Generator, grid: PixelGrid, *, wavelength_m: float, width: float = 0.35) -> F32:
    """Return noise (H, W) with a log-normal spectrum, mean 0 and deviation 1."""
    return _filtered(rng, grid, lambda f: np.exp(-0.5 * (np.log(np.maximum(f, 1e-9) * wavelength_m) / width) ** 2))


def _filtered(
    rng: np.random.Generator, grid: PixelGrid, gain: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
) -> F32:
    """Filter white noise; a margin prevents matching of opposite borders."""
    height, width = (scipy.fft.next_fast_len(n + n // 8, real=True) for n in grid.shape)
    white = rng.standard_normal((height, width), dtype=np.float32)
    rows = scipy.fft.fftfreq(height, grid.gsd)[:, None]
    columns = scipy.fft.rfftfreq(width, grid.gsd)[None, :]
    weights = gain(np.hypot(rows, columns)).astype(np.float32)
    weights[0, 0] = 0.0
    field: F32 = scipy.fft.irfft2(scipy.fft.rfft2(white) * weights, s=(height, width))[: grid.height, : grid.width]
    deviation = max(float(field.std()), 1e-12)
    return np.asarray((field - field.mean()) / np.float32(deviation), dtype=np.float32)


def hashed(ids: npt.NDArray[np.int64], salt: int) -> F32:
    """Hash each integer to a uniform number in [0, 1) (splitmix64 finalizer)."""
    bits = ids.astype(np.uint64) + np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def combined(*parts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Combine integers into one for `hashed`. Different tuples collide only by chance."""
    total = parts[0].astype(np.int64)
    for part in parts[1:]:
        total = (total * np.int64(1_000_003)) ^ part
    return total & np.int64(2**62 - 1)


def above_share(field: F32, share: float) -> Mask:
    return field > np.quantile(field, 1.0 - share) if share > 0 else np.zeros(field.shape, dtype=bool)


def shifted(mask: Mask, *, down: int, right: int) -> Mask:
    """Shift a mask by integer pixels; new pixels are False."""
    return np.asarray(scipy.ndimage.shift(mask, (down, right), order=0), dtype=np.bool_)
