"""Measurement of sampling: one cell after the other with interleaved variants, then images of all variants."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from dithc.bench.record import circumstances
from dithc.bench.sampling import decoders, decoding
from dithc.bench.sampling.contenders import BASE, CONTENDERS, DIFFUSERS, Contender, named
from dithc.bench.sampling.processes import Crew, crew
from dithc.bench.sampling.turns import Array, compared, in_turns, picture, rows, sent
from dithc.bench.sampling.ways import TRAINED_STEPS, Cell, config_of
from dithc.hardware import discover, plan
from dithc.log import logger, problem, progress
from dithc.model import DiTConfig
from dithc.sittings import Stopped, now

NORMAL = tuple(one.name for one in CONTENDERS if not one.is_optional)
log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Settings of the sampling benchmark.

    Attributes:
        tokens: tokens of an image, square numbers.
        dtypes: types of the products.
        guidance: guidance scales; 1 runs only the conditional branch.
        cpus: threads of each rank; None shares the cores of this machine equally.
        contenders: names of variants; one rank is always included.
        steps: sampling steps of an image; caches need many steps to save time.
        decode_size: side in pixels of the decoded image; 0 skips decoding.
        warmup: untimed steps of each variant after the compared step.
        seconds: minimum duration of a timed round.
    """

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
    """Start the processes, measure, and return the result for JSON. Stored cells are reused.

    Raises:
        UserError: the settings are invalid, or a process failed.
    """
    cells, configs = _checked(settings)
    machine = discover()
    cpus = settings.cpus or len(machine.visible_cores) // settings.ranks
    if cpus < 1:
        raise problem(
            "bench sampling --ranks",
            got=f"{settings.ranks}, on {len(machine.visible_cores)} core(s)",
            expected="at least one core per rank",
            fix="lower --ranks, or set --cpus for ranks that share cores",
        )
    decoders.refused(settings.decode_size, settings.decode_width, ranks=settings.ranks)
    chosen = named([BASE, *settings.contenders])
    of_steps = [one for one in chosen if one.cache is None]
    measured: list[dict[str, Any]] = []
    images: dict[str, Any] | None = None
    decoded: list[dict[str, Any]] = []
    names = list(decoders.DECODERS) if settings.decode_size else []
    tried = decoding.Asked(width=settings.decode_width, size=settings.decode_size, rounds=settings.rounds)
    try:
        with progress(total=len(cells) + 1 + 2 * len(names), label="sampling") as bar:
            with crew(ranks=settings.ranks, cpus=cpus) as found:
                for cell, config in zip(cells, configs, strict=True):
                    measured.append(now().unit(f"{cell}", partial(_cell, found, cell, config, of_steps, settings)))
                    bar.update(1, now=str(cell))
                images = now().unit("images", partial(_images, found, cells[0], configs[0], chosen, settings))
                bar.update(1, now="images")
                for name in names:
                    decoded.append(now().unit(f"decode {name}", partial(decoding.timed, found, name, tried)))
                    bar.update(1, now=f"decode {name}")
            if names:
                with crew(ranks=settings.ranks, cpus=cpus, is_for_memory=True) as fresh:
                    for one in decoded:
                        peaks = partial(decoding.peaks, fresh, one, tried)
                        decoding.add_peaks(one, now().unit(f"memory of {one['decoder']}", peaks))
                        bar.update(1, now=f"memory of {one['decoder']}")
    except Stopped:
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
        **circumstances(machine, plan(machine, ranks_per_node=settings.ranks)),
    }


def _checked(settings: SamplingSettings) -> tuple[list[Cell], list[DiTConfig]]:
    """Return the cells and the configurations of their networks."""
    names = [one.name for one in CONTENDERS]
    limits: list[tuple[str, object, str, bool]] = [
        ("--ranks", settings.ranks, "2 or more", settings.ranks >= 2),
        ("--rounds", settings.rounds, "1 or more", settings.rounds >= 1),
        ("--warmup", settings.warmup, "1 or more", settings.warmup >= 1),
        ("--cpus", settings.cpus, "1 or more", settings.cpus is None or settings.cpus >= 1),
        ("--steps", settings.steps, f"1 to {TRAINED_STEPS}", 1 <= settings.steps <= TRAINED_STEPS),
        ("--dtypes", settings.dtypes, "fp32, bf16", bool(settings.dtypes) and set(settings.dtypes) <= {"fp32", "bf16"}),
        ("--tokens", settings.tokens, "one number or more", bool(settings.tokens)),
        ("--guidance", settings.guidance, "at least 1", bool(settings.guidance) and min(settings.guidance) >= 1),
        ("--contenders", settings.contenders, f"among {', '.join(names)}", set(settings.contenders) <= set(names)),
    ]  # fmt: skip
    for option, got, expected, is_right in limits:
        if not is_right:
            raise problem(f"bench sampling {option}", got=got, expected=expected, fix=f"correct {option}")
    cells = [
        Cell(
            model=settings.model,
            overrides=settings.overrides,
            tokens=tokens,
            dtype=dtype,
            guidance=guidance,
            steps=settings.steps,
        )
        for tokens in settings.tokens
        for dtype in settings.dtypes
        for guidance in settings.guidance
    ]
    by_tokens = {cell.tokens: config_of(cell) for cell in cells}
    return cells, [by_tokens[cell.tokens] for cell in cells]


def _open(
    found: Crew, cell: Cell, config: DiTConfig, chosen: Sequence[Contender], ranks: int
) -> tuple[list[Contender], dict[str, str]]:
    """Build the variants of a cell. Return them and the reasons of failures."""
    faults = {one.name: one.fault(cell, config, ranks=ranks) for one in chosen}
    reasons = {name: fault for name, fault in faults.items() if fault is not None}
    able = [one for one in chosen if one.name not in reasons]
    for where in ("ranks", "alone"):
        here = [one.name for one in able if (one.where == "alone") == (where == "alone")]
        for answer in found.ask(where, "open", cell, here):
            reasons |= answer
    return [one for one in able if one.name not in reasons], reasons


def _cell(
    found: Crew, cell: Cell, config: DiTConfig, chosen: Sequence[Contender], settings: SamplingSettings
) -> dict[str, Any]:
    """Compare the outputs of all variants, then time them interleaved."""
    able, reasons = _open(found, cell, config, chosen, settings.ranks)
    told: dict[str, dict[str, Any]] = {}
    base: Array = np.zeros(0, np.float32)
    for one in able:
        answers = found.ask(one.where, "output", one.name)
        base = answers[0][0] if one.name == BASE else base
        told[one.name] = compared([output for output, _ in answers], base) | {
            "sent": sent([counts for _, counts in answers])
        }
    loops = {}
    for one in able:
        once = [max(found.ask(one.where, "step", one.name, 1)) for _ in range(settings.warmup)]
        loops[one.name] = max(1, int(settings.seconds / once[-1]))
    runs = {one.name: partial(_seconds, found, one, loops[one.name], settings.ranks) for one in able}
    timings = in_turns(runs, settings.rounds)
    return {
        "tokens": cell.tokens,
        "dtype": cell.dtype,
        "guidance": cell.guidance,
        "rows": rows(chosen, timings, told, reasons),
    }


def _seconds(found: Crew, one: Contender, loops: int, ranks: int) -> float:
    return float(max(found.ask(one.where, "step", one.name, loops))) / one.calls(ranks)


def _images(
    found: Crew, cell: Cell, config: DiTConfig, chosen: Sequence[Contender], settings: SamplingSettings
) -> dict[str, Any]:
    """Time and compare an image by each variant, and store its preview."""
    able, reasons = _open(found, cell, config, chosen, settings.ranks)
    made: dict[str, list[Array]] = {}
    told: dict[str, dict[str, Any]] = {}

    def once(one: Contender) -> float:
        answers = found.ask(one.where, "image", one.name)
        made[one.name] = [image for _, image, _ in answers]
        if one.cache is not None:
            told[one.name] = {"blocks_run": answers[0][2]}
        return float(max(seconds for seconds, *_ in answers)) / one.calls(settings.ranks)

    runs = {one.name: partial(once, one) for one in able}
    for one in able:
        found.ask(one.where, "step", one.name, settings.warmup)
    timings = in_turns(runs, settings.rounds)
    base = made[BASE][0]
    told = {name: told.get(name, {}) | compared(images, base) for name, images in made.items()}
    shown = [one.name for one in able if one.where == "ranks" or one.cache or one.name in (BASE, DIFFUSERS)]
    return {
        "tokens": cell.tokens,
        "dtype": cell.dtype,
        "guidance": cell.guidance,
        "steps": cell.steps,
        "rows": [row | _rate(row) for row in rows(chosen, timings, told, reasons)],
        "pictures": {name: picture(made[name][-1], base).tolist() for name in shown},
        "differences": {
            name: np.abs(made[name][-1] - base)[0].max(axis=0).tolist()
            for name in shown
            if not np.array_equal(made[name][-1], base)
        },
        "largest": float(np.abs(base).max()),
    }


def _rate(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"images_per_second": 1 / row["seconds"]["median"]} if row["status"] == "ok" else {}
