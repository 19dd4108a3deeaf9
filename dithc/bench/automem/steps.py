"""Interleaved steps of `dithc bench automem` in one process: with and without the pool, with and without AutoMem."""

import resource
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

import torch

from dithc.bench.automem.training_runs import AutoMemSettings
from dithc.bench.environment import require_library
from dithc.bench.step import variants
from dithc.bench.timing import spread, time_runs
from dithc.diffusion import Schedule
from dithc.engine.automem import AutoMem, Manager, get_manager
from dithc.engine.memory import Pool, Tiers, TierSpec, output_pool, set_output_pool
from dithc.model import DiT

POOL, TORCH = "pool", "torch's allocator"
UNMANAGED, RESIDENT = "unmanaged", "AutoMem, everything resident"
# Fastest tier in `resident`, relative to the model's state. Activations also fit, so that no data moves.
BUDGET_FACTOR = 16


def pool_rows(settings: AutoMemSettings) -> dict[str, Any]:
    """Time interleaved steps with outputs from the huge-page pool and from torch's allocator."""
    rows = []
    for model in settings.step_models:
        pools = {POOL: output_pool(), TORCH: Pool.off()}
        steps = {name: partial(_step_in_pool, pool, _step(_training(model, settings))) for name, pool in pools.items()}
        rows += _rows(model, steps, settings)
    return {"rows": rows}


def _step_in_pool(pool: Pool, step: variants.TrainingStep) -> float:
    previous = set_output_pool(pool)
    try:
        return step()
    finally:
        set_output_pool(previous)


def _step(training: variants.Training) -> variants.TrainingStep:
    return variants.TrainingStep(training, variants.VARIANTS[variants.DITHC])


def resident_rows(settings: AutoMemSettings) -> dict[str, Any]:
    """Time interleaved steps without AutoMem, and with two tiers of which the first holds all data."""
    rows = []
    for model in settings.step_models:
        plain, training = (_training(model, settings) for _ in range(2))
        budget_bytes = BUDGET_FACTOR * training.state_bytes
        fast = TierSpec(name="fast", kind="ddr", budget_bytes=budget_bytes)
        with closing(Tiers([fast, TierSpec(name="slow", kind="ddr", budget_bytes=None)])) as tiers:
            training.model = AutoMem(training.model, tiers=tiers)
            managed = get_manager(training.model)
            assert managed is not None
            with closing(managed):
                resident = partial(_step_in_tiers, tiers, managed, _step(training))
                steps: dict[str, Callable[[], float]] = {UNMANAGED: _step(plain), RESIDENT: resident}
                rows += _rows(model, steps, settings)
                is_resident = managed.plan is not None and managed.plan.everything_resident
                peak = tiers.fast.counters().peak_backed_bytes
                rows[-1] |= {"resident": is_resident, "peak_fast_bytes": peak, "budget_bytes": budget_bytes}
    return {"rows": rows}


def _step_in_tiers(tiers: Tiers, managed: Manager, step: variants.TrainingStep) -> float:
    tiers.serve()
    try:
        managed.begin_step()
        return step()
    finally:
        tiers.release()


def _training(preset: str, settings: AutoMemSettings) -> variants.Training:
    require_library("bench automem")
    torch.manual_seed(settings.seed)
    model, schedule = DiT.from_preset(preset, **settings.overrides), Schedule.linear()
    batch = variants.Batch.random(model, schedule, size=settings.batch, seed=settings.seed)
    return variants.Training(model, batch=batch, dtype=settings.dtype)


def _rows(model: str, steps: Mapping[str, Callable[[], float]], settings: AutoMemSettings) -> list[dict[str, Any]]:
    """Return one row per variant, with its time relative to the first variant in the same round."""
    losses: dict[str, list[float]] = {name: [] for name in steps}
    faults: dict[str, list[int]] = {name: [] for name in steps}

    def run(name: str) -> None:
        start_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        losses[name].append(steps[name]())
        faults[name].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start_faults)

    runs = {name: partial(run, name) for name in steps}
    with variants.quiet_choices():
        time_runs(runs, repeats=settings.warmup)
        seconds = time_runs(runs, repeats=settings.step_rounds)
    first = next(iter(steps))
    return [
        {
            "name": name,
            "model": model,
            "status": "ok",
            "seconds": seconds[name].to_dict(),
            "page_faults": median(faults[name][settings.warmup :]),
            "over_first": spread(seconds[name].ratios_to(seconds[first])),
            "losses": losses[name],
            "losses_identical": losses[name] == losses[first],
        }
        for name in steps
    ]
