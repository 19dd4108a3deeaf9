"""Comparison and interleaved timing of variants."""

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


def compare_and_time(
    pool: WorkerPool,
    variants: Sequence[SamplingVariant],
    *,
    rounds: int,
    warmup: int = 0,
    seconds: float = 0.0,
    ranks: int,
) -> tuple[dict[str, Timing], dict[str, dict[str, Any]]]:
    """Compare the outputs of all variants, the baseline first, then time them in alternating order.

    The compared run and `warmup` further runs are untimed. `seconds` is the minimum duration of a timed round. Return
    timings, and comparisons with the output of one rank, by variant.
    """
    comparisons: dict[str, dict[str, Any]] = {}
    base: Array | None = None
    loops: dict[str, int] = {}
    for variant in variants:
        runs = [pool.request(variant.role, "run", variant.name, 1) for _ in range(1 + warmup)]
        parts = [reply.output for reply in runs[0]]
        if variant.name in (ROW_PARALLEL, SEPARATE):
            parts = [np.concatenate([part for part in parts if part.size], axis=2)]
        base = parts[0] if base is None else base
        comparisons[variant.name] = compare(parts, base) | {"sent": sum_of([reply.sent for reply in runs[0]])}
        loops[variant.name] = max(1, int(seconds / max(reply.seconds for reply in runs[-1])))
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for variant in chain(*alternating(variants, rounds)):
        replies = pool.request(variant.role, "run", variant.name, loops[variant.name])
        times[variant.name].append(max(reply.seconds for reply in replies) / variant.calls(ranks))
    return {name: Timing(tuple(each)) for name, each in times.items()}, comparisons


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
