"""Measurement of sampling: one cell after the other with interleaved variants, then images of all variants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from typing import Any, Literal

from dithc.bench.environment import circumstances, require, require_among, require_at_least
from dithc.bench.resume import MeasurementStopped, current_session
from dithc.bench.sampling import decoders
from dithc.bench.sampling.comparison import compare_and_time, rows, shown
from dithc.bench.sampling.runners import TRAINED_STEPS, SamplingCase, config_of
from dithc.bench.sampling.variants import BASE, CONTENDERS, DIFFUSERS, NORMAL, SamplingVariant, Where, named
from dithc.bench.sampling.workers import WorkerPool, crew
from dithc.core.logging import progress, user_error
from dithc.engine.hardware import discover_machine, plan_cores

ALIKE = 1e-5  # relative to the largest value; the order of sums alone causes smaller differences


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Settings of the sampling benchmark, described by `dithc bench sampling --help`."""

    model: str = "DiT-S/2"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[int, ...] = (256, 1024, 4096)
    dtypes: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
    guidance: tuple[float, ...] = (4.0, 1.0)
    ranks: int = 2
    cpus: int | None = None
    contenders: tuple[str, ...] = NORMAL
    steps: int = 30
    decode_size: int = 1024
    decode_width: int = 32
    warmup: int = 1
    rounds: int = 3
    seconds: float = 0.5


def bench_sampling(settings: SamplingSettings) -> dict[str, Any]:
    """Start the processes, measure, and return the result for JSON. Stored cells are reused."""
    cells = _checked(settings)
    machine = discover_machine()
    cpus = settings.cpus or len(machine.visible_cores) // settings.ranks
    if cpus < 1:
        got = f"{settings.ranks}, on {len(machine.visible_cores)} core(s)"
        fix = "lower --ranks, or set --cpus for ranks that share cores"
        raise user_error("bench sampling --ranks", got=got, expected="at least one core per rank", fix=fix)
    decoders.check(settings.decode_size, settings.decode_width, ranks=settings.ranks)
    chosen = named([BASE, *settings.contenders])
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

            with crew(ranks=settings.ranks, cpus=cpus) as found:
                for cell in cells:
                    of_steps = [one for one in chosen if one.cache is None]
                    measured.append(unit(f"{cell}", _steps, found, cell, of_steps, settings))
                images = unit("images", _images, found, cells[0], chosen, settings)
                decoded += [unit(f"decode {name}", _decoded, found, name, settings) for name in names]
            if names:
                with crew(ranks=settings.ranks, cpus=cpus, is_for_memory=True) as fresh:
                    for one in decoded:
                        add_peaks(one, unit(f"memory of {one['decoder']}", _peaks, fresh, one, settings))
    except MeasurementStopped:
        if not measured:
            raise
    return {
        "bench": "sampling",
        "settings": asdict(settings),
        "ranks": {"ranks": settings.ranks, "cpus": cpus},
        "contenders": [{"name": one.name, "what": one.what, "where": one.where} for one in chosen],
        "cells": measured,
        "images": images,
        "decoding": {"ways": [{"name": one.name, "what": one.what} for one in decoders.WAYS], "decoders": decoded},
        **circumstances(machine, plan_cores(machine, ranks_per_node=settings.ranks)),
    }


def _checked(settings: SamplingSettings) -> list[SamplingCase]:
    """Check the settings and return the cells."""
    require_at_least(settings, "bench sampling", ranks=2, rounds=1, warmup=1, cpus=1, steps=1, guidance=1)
    require_among("bench sampling --dtypes", settings.dtypes, ("fp32", "bf16"))
    require_among("bench sampling --contenders", settings.contenders, [one.name for one in CONTENDERS])
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


def _open(
    found: WorkerPool, cell: SamplingCase, chosen: Sequence[SamplingVariant], ranks: int, *, is_image: bool = False
) -> tuple[list[SamplingVariant], dict[str, str]]:
    """Build the variants of a cell. Return them and the reasons of failures."""
    config = config_of(cell)
    faults = {one.name: one.fault(cell, config, ranks=ranks) for one in chosen}
    reasons = {name: fault for name, fault in faults.items() if fault is not None}
    able = [one for one in chosen if one.name not in reasons]
    for where in ("ranks", "alone"):
        here = [one.name for one in able if (one.where == "alone") == (where == "alone")]
        for answer in found.ask(where, "open", cell, here, is_image):
            reasons |= answer
    return [one for one in able if one.name not in reasons], reasons


def _steps(
    found: WorkerPool, cell: SamplingCase, chosen: Sequence[SamplingVariant], settings: SamplingSettings
) -> dict[str, Any]:
    """Measure one evaluation of the network by each variant."""
    able, reasons = _open(found, cell, chosen, settings.ranks)
    timings, told, _ = compare_and_time(
        *(found, able), rounds=settings.rounds, warmup=settings.warmup, seconds=settings.seconds, ranks=settings.ranks
    )
    return cell.facts | {"rows": rows(chosen, timings, told, reasons)}


def _images(
    found: WorkerPool, cell: SamplingCase, chosen: Sequence[SamplingVariant], settings: SamplingSettings
) -> dict[str, Any]:
    """Measure an image by each variant, and store small images."""
    able, reasons = _open(found, cell, chosen, settings.ranks, is_image=True)
    timings, told, outputs = compare_and_time(found, able, rounds=settings.rounds, ranks=settings.ranks)
    drawn = [one.name for one in able if one.where == "ranks" or one.cache or one.name in (BASE, DIFFUSERS)]
    found_rows = rows(chosen, timings, told, reasons)
    for row in found_rows:
        if row["status"] == "ok":
            row["images_per_second"] = 1 / row["seconds"]["median"]
    return cell.facts | {"steps": cell.steps, "rows": found_rows, **shown(outputs, drawn)}


def _decoded(found: WorkerPool, name: str, settings: SamplingSettings) -> dict[str, Any]:
    """Measure the decoding of an image by each variant, and store small images."""
    said = {"decoder": name, "size": settings.decode_size, "width": settings.decode_width}
    if reasons := _open_decoder(found, ("ranks", "alone"), name, settings):
        return said | {"status": "skipped", "reason": reasons[0]}
    ways = decoders.WAYS
    timings, told, outputs = compare_and_time(found, ways, rounds=settings.rounds, ranks=1)
    for row in told.values():
        row["alike"] = row["difference"] < ALIKE
    drawn = (BASE, decoders.BY_ROWS, decoders.APART)
    return said | {"status": "ok", "rows": rows(ways, timings, told, {}), **shown(outputs, drawn)}


def _peaks(fresh: WorkerPool, one: Mapping[str, Any], settings: SamplingSettings) -> dict[str, list[int] | None]:
    """Return peak bytes of each variant by rank; None without kernel support."""
    if one["status"] != "ok" or _open_decoder(fresh, ("ranks",), one["decoder"], settings):
        return {}
    answers = {way.name: fresh.ask(way.where, "peak", way.name) for way in decoders.WAYS if way.where != "alone"}
    return {name: None if None in each else each for name, each in answers.items()}


def add_peaks(one: dict[str, Any], found: Mapping[str, list[int] | None]) -> None:
    """Add the peaks to the rows of a decoder, with the ratio to one rank."""
    alone = found.get(BASE)
    for row in one.get("rows", ()):
        mine = found.get(row["name"])
        row["peak_bytes"] = mine
        row["peak_over_one_rank"] = max(mine) / alone[0] if mine and alone and alone[0] > 0 else None


def _open_decoder(found: WorkerPool, places: Sequence[Where], name: str, settings: SamplingSettings) -> list[str]:
    """Build a decoder in all processes. Return the reasons of failures."""
    order = ("open_decoder", name, settings.decode_width, settings.decode_size)
    return [reason for where in places for answer in found.ask(where, *order) for reason in answer.values()]
