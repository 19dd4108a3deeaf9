"""Measured covariance of the errors of a network's clean images x^(x_t) - x, by noise level.

A trained network has other errors than the exact mean of normal data, whose covariance is in `posterior.py`.

Legend: n images, C bands, H, W image.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from dithc.diffusion.guidance import Denoise
from dithc.diffusion.objective import Objective, parts
from dithc.diffusion.restoration.covariance import RadialCovariance

LEVELS = 12  # measured timesteps of a sampling run
LEAST_SIGNAL = 0.01  # a of a covariance: below, s / a diverges, and C is almost the covariance of the data
TINY = 1e-30


@torch.no_grad()
def measure_errors(
    denoise: Denoise,
    objective: Objective,
    images: Tensor,
    noise: Callable[[int], Tensor],
    times: Sequence[float],
    *,
    part: tuple[int, int] = (0, 1),
) -> dict[float, RadialCovariance]:
    """Return covariances of x^ - x by s / a, for x_t = a x + s noise at up to `LEVELS` timesteps of a sampling run.

    Correlation ends at twice the size of the images, because the network sees one window of a larger image.

    Args:
        denoise: Network as for `posterior_denoiser`.
        objective: Meaning of the network's output.
        images: Clean images x (n, C, H, W). Pixels with a NaN band have the values of the nearest other pixel in the input,
            and do not count.
        noise: Noise (n, C, H, W) as a function of the draw.
        times: Timesteps of the sampling run.
        part: Number and count of the shares of the timesteps, of which this call measures one.
    """
    known = images.isfinite().all(1, keepdim=True)  # (n, 1, H, W)
    clean = torch.stack([_filled(image, own[0]) for image, own in zip(images, known, strict=True)])
    signals, noises = (part.tolist() for part in objective.signal_and_noise(torch.tensor(times)))
    usable = [number for number, signal in enumerate(signals) if signal >= 0.99 * LEAST_SIGNAL] or [len(times) - 1]
    measured = {}
    places = torch.linspace(0, len(usable) - 1, min(LEVELS, len(usable))).round().int().tolist()
    for draw, place in list(enumerate(places))[part[0] :: part[1]]:
        number = usable[place]
        t, values = torch.tensor(times)[number].expand(len(clean)), noise(draw)
        x = objective.noisy(clean, t, values)
        error = objective.clean(parts(denoise(x, t), channels=x.shape[1])[0], x, t) - clean
        ratio = noises[number] / max(signals[number], LEAST_SIGNAL)
        measured[ratio] = RadialCovariance.of(torch.where(known, error, torch.nan)).bounded()
    return measured


def _filled(image: Tensor, known: Tensor) -> Tensor:
    """Return an image (C, H, W) with the nearest known pixel (H, W) in place of each other pixel; 0 without any."""
    if known.all() or not known.any():
        return torch.where(known, image, 0.0)
    rows, columns = distance_transform_edt(~known.numpy(), return_distances=False, return_indices=True)
    return image[:, rows, columns]


def errors_at(
    measured: Mapping[float, RadialCovariance], ratio: float, size: tuple[int, int]
) -> tuple[RadialCovariance, Tensor]:
    """Return the nearest covariance of errors in the log of s / a, and its spectrum (C, H, W).

    The spectrum is scaled to the total variance, which is interpolated between the levels.
    """
    ratios = sorted(measured)
    variances = [max(float(measured[other].radial[:, 0].sum()), TINY) for other in ratios]
    variance = math.exp(np.interp(math.log(ratio), np.log(ratios), np.log(variances)))
    nearest = min(range(len(ratios)), key=lambda level: abs(math.log(ratios[level] / ratio)))
    covariance = measured[ratios[nearest]]
    return covariance, covariance.spectrum(size) * (variance / variances[nearest])
