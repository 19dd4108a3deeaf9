"""Interleaved execution, and numerical comparison of outputs with the output of one rank."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dithc.bench.sampling.contenders import BASE, CEILING, WHOLE
from dithc.bench.timing import Timing, spread
from dithc.log import problem

Array = NDArray[np.float32]
COLOURS = 3  # drawn channels of a latent, or bands of an image


class Named(Protocol):
    """Variant with a name."""

    @property
    def name(self) -> str:
        """Name in the results."""


def in_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Timing]:
    """Return the seconds of each run per round. Every second round is reversed."""
    order, found = list(runs), {name: list[float]() for name in runs}
    for turn in range(rounds):
        for name in order if turn % 2 == 0 else order[::-1]:
            found[name].append(runs[name]())
    return {name: Timing(tuple(seconds)) for name, seconds in found.items()}


def compared(outputs: Sequence[Array], base: Array) -> dict[str, Any]:
    """Compare the outputs of all ranks with one rank: bitwise equality, and the largest relative difference.

    Raises:
        UserError: the output of one rank is 0 or not finite, so that a comparison proves nothing.
    """
    most = float(np.abs(base).max())
    if not np.isfinite(most) or most == 0:
        raise problem(
            "bench sampling: the output of one rank",
            got=f"a largest value of {most:g}",
            expected="finite numbers that are not all 0",
            fix="choose another --model or other --override",
        )
    return {
        "equal": all(np.array_equal(output, base) for output in outputs),
        "difference": max(float(np.abs(output - base).max()) for output in outputs) / most,
    }


def picture(latent: Array, base: Array) -> NDArray[np.uint8]:
    """Return the first channels (h, w, 3) of a latent (1, Z, h, w), stretched to percentiles 1 to 99 of `base`."""
    channels = [min(channel, latent.shape[1] - 1) for channel in range(COLOURS)]
    low, high = np.percentile(base[0, channels], (1, 99), axis=(1, 2))  # (3) each
    shares = (latent[0, channels].transpose(1, 2, 0) - low) / np.maximum(high - low, 1e-12)
    return np.asarray(np.clip(shares, 0, 1) * 255 + 0.5, np.uint8)


def sent(each: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the bytes sent by all ranks; None if not counted. A single process never loads MPI."""
    total: dict[str, int | None] = {}
    for name in ("tcp_bytes", "mpi_bytes", "shared_bytes"):
        counts = [one[name] for one in each]
        known = [count for count in counts if count is not None]
        total[name] = sum(known) if len(known) == len(counts) or len(counts) == 1 else None
    return total


def rows(
    chosen: Sequence[Named],
    timings: Mapping[str, Timing],
    told: Mapping[str, Mapping[str, Any]],
    reasons: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return one row per variant. Unavailable variants have their reasons."""

    def over(base: str, name: str) -> dict[str, Any] | None:
        return spread(timings[base].ratios_to(timings[name])) if base in timings else None

    return [
        {"name": one.name, "status": "skipped", "reason": reasons[one.name]}
        if one.name in reasons
        else {
            "name": one.name,
            "status": "ok",
            "seconds": timings[one.name].to_dict(),
            "speedup": over(BASE, one.name),
            "over_all_cores": over(WHOLE, one.name),
            "over_side_by_side": over(CEILING, one.name),
            **told[one.name],
        }
        for one in chosen
    ]
