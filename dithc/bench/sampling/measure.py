"""Measurement of sampling: one cell after the other with interleaved variants, then images of all variants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from typing import Any, Literal

from dithc.bench.environment import circumstances, require, require_among, require_at_least
from dithc.bench.resume import MeasurementStopped, current_session
from dithc.bench.sampling import decoders
from dithc.bench.sampling.comparison import compare_and_time, rows
from dithc.bench.sampling.runners import TRAINED_STEPS, SamplingCase, config_of
from dithc.bench.sampling.variants import BASE, NORMAL, VARIANTS, Role, SamplingVariant, named
from dithc.bench.sampling.workers import WorkerPool, worker_pool
from dithc.core.logging import progress, user_error
from dithc.engine.hardware import discover_machine, plan_cores

TOLERANCE = 1e-5  # relative to the largest value; the order of sums alone causes smaller differences


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Settings of the sampling benchmark, described by `dithc bench sampling --help`."""

    model: str = "DiT-S/2"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[int, ...] = (256, 1024, 4096)
    dtypes: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
    guidance: tuple[float, ...] = (4.0, 1.0)
    ranks: int = 2
    cpus_per_rank: int | None = None
    variants: tuple[str, ...] = NORMAL
    steps: int = 30
    decode_size: int = 1024
    decode_width: int = 32
    warmup: int = 1
    rounds: int = 3
    min_round_seconds: float = 0.5


def bench_sampling(settings: SamplingSettings) -> dict[str, Any]:
    """Start the processes, measure, and return the result for JSON. Stored cells are reused."""
    cells = _make_cells(settings)
    machine = discover_machine()
    cpus = settings.cpus_per_rank or len(machine.visible_cores) // settings.ranks
    if cpus < 1:
        got = f"{settings.ranks}, on {len(machine.visible_cores)} core(s)"
        fix = "lower --ranks, or set --cpus-per-rank for ranks that share cores"
        raise user_error("bench sampling --ranks", got=got, expected="at least one core per rank", fix=fix)
    decoders.check(settings.decode_size, settings.decode_width, ranks=settings.ranks)
    variants = named([BASE, *settings.variants])
    measured: list[dict[str, Any]] = []
    images: dict[str, Any] | None = None
    decoded: list[dict[str, Any]] = []
    names = list(decoders.DECODERS) if settings.decode_size else []
    try:
        with progress(total=len(cells) + 1 + 2 * len(names), label="sampling") as bar:

            def unit(name: str, make: Callable[..., Any], *arguments: Any) -> Any:
                value = current_session().unit(name, partial(make, *arguments))
                bar.update(1, now=name)
                return value

            with worker_pool(ranks=settings.ranks, cpus=cpus) as pool:
                for cell in cells:
                    measured.append(unit(f"{cell}", _measure_cell, pool, cell, variants, settings, False))
                images = unit("images", _measure_cell, pool, cells[0], variants, settings, True)
                decoded += [unit(f"decode {name}", _measure_decoder, pool, name, settings) for name in names]
            if names:
                with worker_pool(ranks=settings.ranks, cpus=cpus, is_for_memory=True) as pool:
                    for decoder in decoded:
                        add_peaks(decoder, unit(f"memory of {decoder['decoder']}", _peaks, pool, decoder, settings))
    except MeasurementStopped:
        if not measured:
            raise
    return {
        "bench": "sampling",
        "settings": asdict(settings),
        "ranks": {"ranks": settings.ranks, "cpus": cpus},
        "variants": [{"name": one.name, "description": one.description, "where": one.role} for one in variants],
        "cells": measured,
        "images": images,
        "decoding": {
            "variants": [{"name": one.name, "description": one.description} for one in decoders.VARIANTS],
            "decoders": decoded,
        },
        **circumstances(machine, plan_cores(machine, ranks_per_node=settings.ranks)),
    }


def _make_cells(settings: SamplingSettings) -> list[SamplingCase]:
    require_at_least(settings, "bench sampling", ranks=2, rounds=1, warmup=1, cpus_per_rank=1, steps=1, guidance=1)
    require_among("bench sampling --dtypes", settings.dtypes, ("fp32", "bf16"))
    require_among("bench sampling --variants", settings.variants, [one.name for one in VARIANTS])
    require(settings.steps <= TRAINED_STEPS, "bench sampling --steps", settings.steps, f"1 to {TRAINED_STEPS}")
    require(bool(settings.tokens), "bench sampling --tokens", "none", "square numbers, such as 256, 1024, 4096")
    common: dict[str, Any] = {"model": settings.model, "overrides": settings.overrides, "steps": settings.steps}
    combinations = product(settings.tokens, settings.dtypes, settings.guidance)
    cells = [
        SamplingCase(tokens=tokens, dtype=dtype, guidance=scale, **common) for tokens, dtype, scale in combinations
    ]
    for cell in cells:
        config_of(cell)
    return cells


def _measure_cell(
    pool: WorkerPool, cell: SamplingCase, methods: Sequence[SamplingVariant], settings: SamplingSettings, is_image: bool
) -> dict[str, Any]:
    """Measure an image by each variant, or one evaluation of the network."""
    ranks, config = settings.ranks, config_of(cell)
    faults = {one.name: one.skip_reason(cell, config, ranks=ranks) for one in methods}
    reasons = {name: fault for name, fault in faults.items() if fault is not None}
    usable = [one for one in methods if one.name not in reasons]
    for role in ("ranks", "alone"):
        members = [one.name for one in usable if (one.role == "alone") == (role == "alone")]
        for answer in pool.request(role, "open", cell, members, is_image):
            reasons |= answer
    usable = [one for one in usable if one.name not in reasons]
    limits: dict[str, Any] = {} if is_image else {"warmup": settings.warmup, "seconds": settings.min_round_seconds}
    timings, comparisons = compare_and_time(pool, usable, rounds=settings.rounds, ranks=ranks, **limits)
    table = rows(methods, timings, comparisons, reasons)
    if not is_image:
        return cell.parameters | {"rows": table}
    for row in table:
        if row["status"] == "ok":
            row["images_per_second"] = 1 / row["seconds"]["median"]
    return cell.parameters | {"steps": cell.steps, "rows": table}


def _measure_decoder(pool: WorkerPool, name: str, settings: SamplingSettings) -> dict[str, Any]:
    """Measure the decoding of an image by each variant."""
    head = {"decoder": name, "size": settings.decode_size, "width": settings.decode_width}
    if reasons := _open_decoder(pool, ("ranks", "alone"), name, settings):
        return head | {"status": "skipped", "reason": reasons[0]}
    variants = decoders.VARIANTS
    timings, comparisons = compare_and_time(pool, variants, rounds=settings.rounds, ranks=1)
    for row in comparisons.values():
        row["within_tolerance"] = row["difference"] < TOLERANCE
    return head | {"status": "ok", "rows": rows(variants, timings, comparisons, {})}


def _peaks(pool: WorkerPool, decoder: Mapping[str, Any], settings: SamplingSettings) -> dict[str, list[int] | None]:
    """Return peak bytes of each variant by rank; None without kernel support."""
    if decoder["status"] != "ok" or _open_decoder(pool, ("ranks",), decoder["decoder"], settings):
        return {}
    answers = {one.name: pool.request(one.role, "peak", one.name) for one in decoders.VARIANTS if one.role != "alone"}
    return {name: None if None in peaks else peaks for name, peaks in answers.items()}


def add_peaks(one: dict[str, Any], by_variant: Mapping[str, list[int] | None]) -> None:
    """Add the peaks to the rows of a decoder, with the ratio to one rank."""
    single = by_variant.get(BASE)
    for row in one.get("rows", ()):
        peaks = by_variant.get(row["name"])
        row["peak_bytes"] = peaks
        row["peak_over_one_rank"] = max(peaks) / single[0] if peaks and single and single[0] > 0 else None


def _open_decoder(pool: WorkerPool, roles: Sequence[Role], name: str, settings: SamplingSettings) -> list[str]:
    order = ("open_decoder", name, settings.decode_width, settings.decode_size)
    return [reason for role in roles for answer in pool.request(role, *order) for reason in answer.values()]
