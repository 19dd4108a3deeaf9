"""Comparison and interleaved timing of variants, and small images of their outputs."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.bench.child_process import sum_of
from dithc.bench.sampling.decoders import ROW_PARALLEL, SEPARATE
from dithc.bench.sampling.variants import ALL_CORES, BASE, CEILING, SamplingVariant
from dithc.bench.sampling.workers import WorkerPool
from dithc.bench.timing import Timing, alternating, spread
from dithc.core.logging import user_error

Array = NDArray[np.float32]
COLORS = 3  # drawn channels of a latent, or bands of an image
DRAWN_PIXELS = 64  # maximum side of stored images


def compare_and_time(
    pool: WorkerPool,
    variants: Sequence[SamplingVariant],
    *,
    rounds: int,
    warmup: int = 0,
    seconds: float = 0.0,
    ranks: int,
) -> tuple[dict[str, Timing], dict[str, dict[str, Any]], dict[str, Array]]:
    """Compare the outputs of all variants, the baseline first, then time them in alternating order.

    The compared run and `warmup` further runs are untimed. `seconds` is the minimum duration of a timed round. Return
    timings, comparisons with the output of one rank, and outputs, by variant.
    """
    comparisons: dict[str, dict[str, Any]] = {}
    outputs: dict[str, Array] = {}
    loops: dict[str, int] = {}
    for variant in variants:
        runs = [pool.request(variant.role, "run", variant.name, 1) for _ in range(1 + warmup)]
        parts = [reply.output for reply in runs[0]]
        if variant.name in (ROW_PARALLEL, SEPARATE):
            parts = [np.concatenate([part for part in parts if part.size], axis=2)]
        outputs[variant.name] = parts[0]
        comparisons[variant.name] = compare(parts, outputs[BASE]) | {"sent": sum_of([reply.sent for reply in runs[0]])}
        if variant.cache is not None:
            comparisons[variant.name]["blocks_run"] = runs[0][0].block_share
        loops[variant.name] = max(1, int(seconds / max(reply.seconds for reply in runs[-1])))
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for variant in chain(*alternating(variants, rounds)):
        replies = pool.request(variant.role, "run", variant.name, loops[variant.name])
        times[variant.name].append(max(reply.seconds for reply in replies) / variant.calls(ranks))
    return {name: Timing(tuple(each)) for name, each in times.items()}, comparisons, outputs


def compare(outputs: Sequence[Array], base: Array) -> dict[str, Any]:
    """Compare the outputs of all ranks with one rank: bitwise equality, and the largest relative difference."""
    largest = float(np.abs(base).max())
    if not np.isfinite(largest) or largest == 0:
        raise user_error(
            "bench sampling: the output of one rank",
            got=f"a largest value of {largest:g}",
            expected="finite numbers that are not all 0",
            fix="choose another --model or other --override",
        )
    return {
        "equal": all(np.array_equal(output, base) for output in outputs),
        "difference": max(float(np.abs(output - base).max()) for output in outputs) / largest,
    }


def thumbnail(latent: Array, base: Array) -> NDArray[np.uint8]:
    """Return the first channels (h, w, 3) of a latent (1, Z, h, w), stretched to percentiles 1 to 99 of `base`."""
    channels = [min(channel, latent.shape[1] - 1) for channel in range(COLORS)]
    low, high = np.percentile(base[0, channels], (1, 99), axis=(1, 2))  # (3) each
    shares = (latent[0, channels].transpose(1, 2, 0) - low) / np.maximum(high - low, 1e-12)
    return np.asarray(np.clip(shares, 0, 1) * 255 + 0.5, np.uint8)


def thumbnails(outputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Any]:
    """Return small images of outputs, and their differences from one rank unless they are equal."""
    base = outputs[BASE]
    return {
        "images": {name: thumbnail(downsample(outputs[name]), downsample(base)).tolist() for name in names},
        "differences": {
            name: differences(outputs[name], base).tolist() for name in names if not np.array_equal(outputs[name], base)
        },
        "largest": float(np.abs(base).max()),
    }


def downsample(image: Array) -> Array:
    """Downsample an image (1, C, H, W) by block means."""
    return np.asarray(_blocks(image).mean(axis=(3, 5)))


def differences(image: Array, base: Array) -> Array:
    """Return the largest difference (h, w) in each block of `downsample`, with three significant digits."""
    maxima = _blocks(np.abs(image - base)).max(axis=(3, 5))[0].max(axis=0)
    return np.array([[float(f"{value:.3g}") for value in row] for row in maxima])


def _blocks(image: Array) -> Array:
    """Return blocks (1, C, h, k, w, k) of k x k pixels."""
    _, bands, height, width = image.shape
    side = max(1, max(height, width) // DRAWN_PIXELS)
    height, width = height // side, width // side
    return image[:, :, : height * side, : width * side].reshape(1, bands, height, side, width, side)


def rows(
    chosen: Sequence[SamplingVariant],
    timings: Mapping[str, Timing],
    comparisons: Mapping[str, Mapping[str, Any]],
    reasons: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return one row per variant. Unavailable variants have their reasons."""

    def ratio(base: str, name: str) -> dict[str, Any] | None:
        return spread(timings[base].ratios_to(timings[name])) if base in timings else None

    return [
        {"name": variant.name, "status": "skipped", "reason": reasons[variant.name]}
        if variant.name in reasons
        else {
            "name": variant.name,
            "status": "ok",
            "seconds": timings[variant.name].to_dict(),
            "speedup": ratio(BASE, variant.name),
            "over_all_cores": ratio(ALL_CORES, variant.name),
            "over_side_by_side": ratio(CEILING, variant.name),
            **comparisons[variant.name],
        }
        for variant in chosen
    ]
