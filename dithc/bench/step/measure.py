"""Interleaved timing of one training step in several variants, with the ceilings of the same minute."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from dithc.bench import rooflines
from dithc.bench.environment import circumstances, prepare_threads, require, require_among, require_at_least
from dithc.bench.rooflines import Precision
from dithc.bench.step import variants
from dithc.bench.step.variants import Batch, Training, TrainingStep
from dithc.bench.timing import Timing, spread, time_runs
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.units import GIGA
from dithc.diffusion import Schedule
from dithc.engine import native
from dithc.engine.cftp import ThreadTeam
from dithc.engine.memory import output_pool
from dithc.engine.numa import available_bytes, peak_rss_bytes, pss_bytes, reset_peak_rss
from dithc.model import DiT, Flops, flops_per_image

log = get_logger(__name__)

# Conventions for counting operations (see dithc.model): with attention's two products, or only linear layers.
CONVENTIONS = ("training_total", "training_linear")
# Part of the out-of-memory error of torch's CPU allocator.
OUT_OF_MEMORY = "can't allocate memory"


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Settings of the step benchmark, described by `dithc bench step --help`."""

    model: str = "DiT-S/2"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 16
    dtype: Precision = "fp32"
    compare: tuple[str, ...] = variants.PEERS
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int | None = None
    warmup: int = 2
    rounds: int = 7
    seed: int = 0

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of all variants, dithc first if it runs on the device."""
        if self.device != "cpu":
            return variants.EXACT_PEERS
        return (variants.DITHC, *(name for name in self.compare if name != variants.DITHC))


@dataclass(kw_only=True)
class _Entry:
    name: str
    status: Literal["ok", "skipped", "oom", "failed"] = "ok"
    reason: str = ""
    step: TrainingStep | None = None
    first_loss: float | None = None
    first_seconds: float | None = None
    peak_above_start_bytes: int | None = None


def bench_step(settings: StepSettings) -> dict[str, Any]:
    """Run the benchmark and return its result for JSON."""
    _check(settings)
    machine, core_plan = prepare_threads(settings.threads)
    available = available_bytes()
    with variants.quiet_choices():
        torch.manual_seed(settings.seed)
        model, schedule = DiT.from_preset(settings.model, **settings.overrides), Schedule.linear()
        batch = Batch.random(model, schedule, size=settings.batch, seed=settings.seed).to(settings.device)
        training = Training(model.to(settings.device), batch=batch, dtype=settings.dtype)
        entries = [_first_run(name, training) for name in settings.variants]
        for entry in entries:
            with _recorded_failure(entry):
                for _ in range(settings.warmup if entry.step else 0):
                    assert entry.step is not None
                    entry.step()
        peak = peak_rss_bytes()  # of the steps, before the ceilings allocate memory
        timings, ceilings = _measure(entries, settings)
    flops = flops_per_image(model.config)
    peers = [name for name in variants.EXACT_PEERS if name in timings]
    return {
        "bench": "step",
        "best_peer": min(peers, key=lambda name: timings[name].median, default=None),
        "settings": asdict(settings) | {"threads": torch.get_num_threads(), "optimizer": "AdamW"},
        "device": torch.cuda.get_device_name() if settings.device == "cuda" else "cpu",
        "model": asdict(model.config),
        "gflop_per_image": {name: getattr(flops, name) / GIGA for name in CONVENTIONS},
        "variants": [_result(entry, timings, flops, settings, ceilings) for entry in entries],
        "ceilings": ceilings,
        "memory": {
            "available_before_bytes": available,
            "state_bytes": training.state_bytes,
            "peak_rss_bytes": peak,
            "pss_bytes": pss_bytes(),
            "note": "all variants share weights and moments; peak_above_start_bytes is the additional memory of one "
            "step of a variant: activations, gradients and other allocations; the output pool is emptied before",
        },
        **circumstances(machine, core_plan),
    }


def _check(settings: StepSettings) -> None:
    require_among("bench --compare", settings.compare, variants.VARIANTS)
    is_valid = len(set(settings.compare)) == len(settings.compare)
    require(is_valid, "bench --compare", ",".join(settings.compare), "each variant at most once")
    require_at_least(settings, batch=1, warmup=1, rounds=1, threads=1)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise user_error(
            "bench step --device cuda",
            got=f"PyTorch {torch.__version__}, which finds no GPU",
            expected="a GPU, its driver, and a PyTorch with CUDA",
            fix="remove --device, or install that PyTorch in a separate environment",
        )


def _first_run(name: str, training: Training) -> _Entry:
    """Build a variant, and compute a loss and gradients with the initial weights."""
    variant, entry = variants.VARIANTS[name], _Entry(name=name)
    skip_reason = None if training.batch.x_t.is_cuda else variant.skip_reason(training.dtype)
    if skip_reason:
        log.warning("skipping %s: %s", name, skip_reason)
        return _Entry(name=name, status="skipped", reason=skip_reason)
    log.info("%s: warming up", name)
    start = time.perf_counter()
    with _recorded_failure(entry):
        entry.step = TrainingStep(training, variant)
        entry.first_loss = entry.step(updates=False)
        entry.first_seconds = time.perf_counter() - start
    return entry


@contextmanager
def _recorded_failure(entry: _Entry) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or OUT_OF_MEMORY in str(error)
        log.warning("%s failed", entry.name, exc_info=error)
        entry.step, entry.status = None, "oom" if out_of_memory else "failed"
        entry.reason = (str(error).splitlines() or [type(error).__name__])[0]


def _measure(entries: list[_Entry], settings: StepSettings) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Time interleaved variants and ceilings, then measure the memory of one step of each variant."""
    steps = {entry.name: entry.step for entry in entries if entry.step is not None}
    ceilings: dict[str, rooflines.GemmRoofline | rooflines.BandwidthRoofline | rooflines.FmaRoofline] = {
        "gemm": rooflines.GemmRoofline(settings.dtype, settings.device),
        "copy": rooflines.BandwidthRoofline(device=settings.device),
    }
    for ceiling in ceilings.values():
        ceiling()
    multiply_add = rooflines.multiply_add_ceiling(settings.dtype) if settings.device == "cpu" else None
    if multiply_add is not None:
        ceilings["multiply_add"] = multiply_add
    runs: dict[str, Callable[[], object]] = {**steps, **{f"{name} ceiling": run for name, run in ceilings.items()}}
    if variants.ONE_CLUSTER in steps:
        runs |= {
            f"{name} ceiling, {variants.ONE_CLUSTER}": variants.one_cluster()(run) for name, run in ceilings.items()
        }
    timings = time_runs(runs, repeats=settings.rounds, are_units=True)
    for entry in entries:
        if entry.step is not None and settings.device == "cpu":
            entry.peak_above_start_bytes = _peak_of(entry.step)
    ceiling_rates: dict[str, Any] = {"gemm_size": rooflines.GEMM_SIZE}
    for name, ceiling in ceilings.items():
        timing = timings[f"{name} ceiling"]
        rate = "gb_per_second" if name == "copy" else "gflop_per_second"
        ceiling_rates |= {f"{name}_{rate}": ceiling.work / timing.median / GIGA, f"{name}_seconds": timing.to_dict()}
        ceiling_rates[f"{name}_work"] = ceiling.work
    if variants.ONE_CLUSTER in steps:
        ceiling_rates["all_clusters_over_one"] = {name: spread(_gains(name, timings)) for name in ceilings}
    ceiling_rates["multiply_add_unit"] = multiply_add.unit if multiply_add else None
    return timings, ceiling_rates


def _gains(name: str, timings: Mapping[str, Timing]) -> list[float]:
    """Return, per round, the rate of all core clusters relative to one core cluster."""
    clusters = ThreadTeam.of().clusters
    # Every thread executes the same number of multiply-adds; the other ceilings share one task.
    work_ratio = sum(map(len, clusters)) / len(clusters[0]) if name == "multiply_add" else 1.0
    return [
        work_ratio * ratio
        for ratio in timings[f"{name} ceiling, {variants.ONE_CLUSTER}"].ratios_to(timings[f"{name} ceiling"])
    ]


def _peak_of(step: TrainingStep) -> int | None:
    """Return the peak memory of one step above its start, in bytes, or None without kernel support."""
    if native.library() is not None:
        output_pool().trim()
    if not reset_peak_rss():
        return None
    start = peak_rss_bytes()
    step()
    return peak_rss_bytes() - start


def _result(
    entry: _Entry,
    timings: Mapping[str, Timing],
    flops: Flops,
    settings: StepSettings,
    ceilings: Mapping[str, Any],
) -> dict[str, Any]:
    variant = variants.VARIANTS[entry.name]
    row: dict[str, Any] = {"name": entry.name, "description": variant.description, "backend": variant.backend}
    row["status"] = entry.status
    if entry.step is None:
        return row | {"reason": entry.reason}
    timing, dithc = timings[entry.name], timings.get(variants.DITHC)
    rates = {name: getattr(flops, name) * settings.batch / timing.median / GIGA for name in CONVENTIONS}

    def share(name: str) -> dict[str, Any] | None:
        """Return the rate relative to a ceiling in the same round, or None without that ceiling."""
        if (ceiling := timings.get(f"{name} ceiling")) is None:
            return None
        work = flops.training_total * settings.batch / ceilings[f"{name}_work"]
        return spread([work * ratio for ratio in ceiling.ratios_to(timing)])

    return row | {
        "seconds": timing.to_dict(),
        "speedup_of_dithc": spread(timing.ratios_to(dithc)) if dithc else None,
        "images_per_second": settings.batch / timing.median,
        "gflop_per_second": rates,
        "share_of_peak": share("multiply_add"),
        "share_of_gemm_ceiling": share("gemm"),
        "first_loss": entry.first_loss,
        "first_seconds": entry.first_seconds,
        "peak_above_start_bytes": entry.peak_above_start_bytes,
    }
