"""Detectability: how well a linear classifier distinguishes generated from real images, at several scales.

The classifier has statistics of color, edges and texture of images averaged over squares of 1, 2, 4 and 8 pixels. Its score is
the area under the ROC curve (AUC) on held-out images: 0.5 for equal sets, 1 for sets that it always distinguishes. Unlike a
Fréchet distance, it depends on the structures that a viewer sees, needs no network, and has a meaning by itself.

In float64. Legend: n images, C bands, H, W image, h, w averaged image, s statistics.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.core.image_quality import block_mean
from dithc.evaluate.statistics import FloatArray

Rows = NDArray[np.floating]

SCALES = (1, 2, 4, 8)
MIN_SIDE, MAX_SIDE = 8, 128  # pixels: of an averaged image; of the described center of a large image
MIN_IMAGES = 16  # per set
SPLITS, RESAMPLES = 8, 25  # halvings of the sets; resampled test halves of each, for the interval
RIDGE = 0.3  # weight of the penalty, relative to the number of training images
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
WINDOW = 5  # pixels, of the local direction of edges
STRAIGHT = 0.9  # local coherence of a straight edge
SMALL = 1e-4  # gray levels of a range of 1, below which differences are rounding


def describe(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the statistics of images (n, C, H, W) at all scales, (n, s); NaN at scales with too few pixels."""
    top, left = (max(0, side - MAX_SIDE) // 2 for side in images.shape[2:])
    images, columns = images[:, :, top : top + MAX_SIDE, left : left + MAX_SIDE], []
    for scale in SCALES:
        height, width = (side // scale for side in images.shape[2:])
        if min(height, width) < MIN_SIDE:
            columns.append(np.full((len(images), sum(counts(images.shape[1]).values())), np.nan))
            continue
        cut = images[:, :, : height * scale, : width * scale]
        averaged = block_mean(cut, scale).astype(np.float64) / 255
        columns.append(np.concatenate([_color(averaged), _edges(averaged), _texture(averaged)], axis=1))
    return np.concatenate(columns, axis=1).astype(np.float32)


def counts(bands: int) -> dict[str, int]:
    """Return the number of statistics of a scale by group."""
    return {"color": 2 * bands + bands * (bands - 1) // 2, "edges": len(QUANTILES) + 3, "texture": 5}


def compare(generated: Rows, real: Rows, *, bands: int, seed: int = 0) -> dict[str, Any] | None:
    """Compare two sets of statistics (n, s).

    Returns:
        By scale `auc` with its 95% `interval`, `groups` (AUC by color, edges and texture alone), and `real`, the AUC of two
        halves of the real set. None with fewer than `MIN_IMAGES` images in a set.
    """
    if min(len(generated), len(real)) < MIN_IMAGES:
        return None
    sizes, result = counts(bands), dict[str, Any]()
    width = sum(sizes.values())
    order = np.random.default_rng(seed).permutation(len(real))
    halves = real[order[: len(real) // 2]], real[order[len(real) // 2 :]]
    for number, scale in enumerate(SCALES):
        columns = slice(number * width, (number + 1) * width)
        ours, theirs = generated[:, columns], real[:, columns]
        if np.isnan(ours).all() or np.isnan(theirs).all():
            continue
        value, interval = auc(ours, theirs, seed=seed)
        groups, start = {}, 0
        for name, count in sizes.items():
            groups[name], _ = auc(ours[:, start : start + count], theirs[:, start : start + count], seed=seed)
            start += count
        control, _ = auc(*(half[:, columns] for half in halves), seed=seed)
        result[f"1/{scale}"] = {"auc": value, "interval": interval, "groups": groups, "real": control}
    return result


def auc(a: Rows, b: Rows, *, seed: int = 0) -> tuple[float, list[float]]:
    """Return the mean AUC of a ridge classifier between rows (n, s) on held-out halves, and its 95% interval.

    The interval is the range of 95% of the values over halvings and resampled test images (bootstrap).
    """
    rng = np.random.default_rng(seed)
    size = min(len(a), len(b))
    half = size // 2
    values, resampled = [], []
    for _ in range(SPLITS):
        first, second = (rows[rng.permutation(len(rows))[:size]].astype(np.float64) for rows in (a, b))
        train = np.concatenate([first[:half], second[:half]])
        mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
        train = (train - mean) / deviation
        target = np.repeat([-1.0, 1.0], half)
        gram = train.T @ train + RIDGE * len(train) * np.eye(train.shape[1])
        weights = np.linalg.solve(gram, train.T @ target)
        scores = [((rows[half:] - mean) / deviation) @ weights for rows in (first, second)]
        values.append(_rank_auc(*scores))
        for _ in range(RESAMPLES):
            resampled.append(_rank_auc(*(rows[rng.integers(len(rows), size=len(rows))] for rows in scores)))
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(np.mean(values)), [float(low), float(high)]


def _rank_auc(negative: FloatArray, positive: FloatArray) -> float:
    """Return the probability that a positive score exceeds a negative one; equal scores count half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left") + np.searchsorted(ordered, positive, side="right")
    return float(below.mean() / (2 * len(ordered)))


def _color(images: FloatArray) -> FloatArray:
    """Return means, deviations and correlations of the bands of images (n, C, h, w)."""
    flat = images.reshape(*images.shape[:2], -1)
    mean, deviation = flat.mean(axis=2), flat.std(axis=2)
    centered = flat - mean[:, :, None]
    pairs = [
        (centered[:, i] * centered[:, j]).mean(axis=1) / (deviation[:, i] * deviation[:, j] + SMALL**2)
        for i, j in combinations(range(images.shape[1]), 2)
    ]
    return np.concatenate([mean, deviation, np.stack(pairs, axis=1) if pairs else mean[:, :0]], axis=1)


def _edges(images: FloatArray) -> FloatArray:
    """Return quantiles of the gradient of the mean band, its coherence globally and locally, and the share of straight edges."""
    from scipy.ndimage import uniform_filter  # scipy takes longer to import than the package

    gray = images.mean(axis=1)
    dx, dy = np.diff(gray, axis=2)[:, :-1], np.diff(gray, axis=1)[:, :, :-1]  # (n, h - 1, w - 1)
    magnitude = np.hypot(dx, dy).reshape(len(gray), -1)
    products = dx * dx, dy * dy, dx * dy

    def coherence(of: Callable[[FloatArray], FloatArray]) -> FloatArray:
        xx, yy, xy = map(of, products)
        return np.asarray(np.hypot(xx - yy, 2 * xy) / (xx + yy + SMALL**2))

    local = coherence(lambda values: uniform_filter(values, size=(0, WINDOW, WINDOW)))
    energy = products[0] + products[1] + SMALL**2
    weight = energy / energy.sum(axis=(1, 2), keepdims=True)
    shape = [
        coherence(lambda values: values.mean(axis=(1, 2))),
        (weight * local).sum(axis=(1, 2)),
        (weight * (local > STRAIGHT)).sum(axis=(1, 2)),
    ]
    return np.concatenate(
        [np.log(np.quantile(magnitude, QUANTILES, axis=1).T + SMALL), np.stack(shape, axis=1)], axis=1
    )


def _texture(images: FloatArray) -> FloatArray:
    """Return the deviation and kurtosis of the curvature, the kurtosis of the gradient, fine over coarse detail, and the
    correlation of the curvature between bands."""
    gray = images.mean(axis=1)
    bands = np.concatenate([gray[:, None], images], axis=1)
    inner = bands[:, :, 1:-1, 1:-1]
    sides = bands[:, :, :-2, 1:-1] + bands[:, :, 2:, 1:-1] + bands[:, :, 1:-1, :-2] + bands[:, :, 1:-1, 2:]
    curvature = (4 * inner - sides).reshape(*bands.shape[:2], -1)  # (n, 1 + C, ...)
    gradient = np.diff(gray, axis=2).reshape(len(gray), -1)
    even = gray[:, : gray.shape[1] // 2 * 2, : gray.shape[2] // 2 * 2]
    coarse = np.repeat(np.repeat(block_mean(even, 2), 2, axis=1), 2, axis=2)
    fine = (even - coarse).std(axis=(1, 2)) / (even.std(axis=(1, 2)) + SMALL)
    shared = curvature[:, 0].std(axis=1) / (curvature[:, 1:].std(axis=2).mean(axis=1) + SMALL)
    return np.stack(
        [
            np.log(curvature[:, 0].std(axis=1) + SMALL),
            np.log1p(_kurtosis(curvature[:, 0])),
            np.log1p(_kurtosis(gradient)),
            fine,
            shared,
        ],
        axis=1,
    )


def _kurtosis(values: FloatArray) -> FloatArray:
    centered = values - values.mean(axis=1, keepdims=True)
    return np.asarray((centered**4).mean(axis=1) / (centered.var(axis=1) ** 2 + SMALL**4))
