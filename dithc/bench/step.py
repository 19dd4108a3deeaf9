"""One training step, in several ways, timed in turns, beside the ceilings of the same minute."""

import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Literal

import torch

from dithc import hcops
from dithc.bench.ceilings import COPY_BYTES, GEMM_SIZE, CopyCeiling, GemmCeiling
from dithc.bench.contenders import CONTENDERS, Batch, Precision, TrainingStep
from dithc.bench.timing import Timing, take_turns
from dithc.diffusion import Schedule
from dithc.hardware import discover, plan
from dithc.log import UserError, logger, problem
from dithc.memory import available_bytes, peak_rss_bytes, pss_bytes, reset_peak_rss
from dithc.model import DiT, Flops, flops_per_image

log = logger(__name__)

GIGA = 1e9
GIB = 1 << 30
# The two ways to count (see dithc.model): with the two products of attention, and linear layers alone.
CONVENTIONS = ("training_total", "training_linear")
# Words of the error with which torch's CPU allocator reports that the system refused memory.
OUT_OF_MEMORY = "can't allocate memory"


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What to measure.

    Attributes:
        model: name of a preset.
        overrides: fields of the preset to change, by name.
        batch: images per step.
        dtype: fp32, or bf16 for autocast to bfloat16 around the forward pass (weights stay fp32).
        compare: names of CONTENDERS; the first is the base of the ratios.
        threads: compute threads; None takes the core plan's.
        warmup: steps of each contender before the clock.
        repeats: rounds.
        seed: of weights and batch.
    """

    model: str = "DiT-S/2"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 16
    dtype: Precision = "fp32"
    compare: tuple[str, ...] = ("eager", "compile")
    threads: int | None = None
    warmup: int = 2
    repeats: int = 7
    seed: int = 0


@dataclass(kw_only=True)
class _Entry:
    """A contender of this run: warm, or the reason why it is not; then what was measured of it."""

    name: str
    status: Literal["ok", "skipped", "oom", "failed"] = "ok"
    reason: str = ""
    step: TrainingStep | None = None
    first_loss: float | None = None
    first_step_seconds: float | None = None
    peak_above_start_bytes: int | None = None


def bench_step(settings: StepSettings) -> dict[str, Any]:
    """Measures and returns everything that is known about it, ready for JSON.

    Raises:
        UserError: an unknown contender or preset, or a number below one.
    """
    _check(settings)
    machine = discover()
    core_plan = plan(machine, ranks_per_node=1, cpus_per_rank=settings.threads)
    torch.set_num_threads(core_plan.ranks[0].num_threads)
    available = available_bytes()
    entries = [_prepare(name, settings) for name in settings.compare]
    peak = peak_rss_bytes()  # of the steps, before the ceilings take their own memory
    timings, ceilings = _measure(entries, settings)
    config = DiT.from_preset(settings.model, **settings.overrides).config
    flops = flops_per_image(config)
    base = timings.get(settings.compare[0])
    return {
        "bench": "step",
        "settings": asdict(settings) | {"threads": torch.get_num_threads(), "optimizer": "AdamW, fused"},
        "model": asdict(config),
        "gflop_per_image": {name: getattr(flops, name) / GIGA for name in CONVENTIONS},
        "contenders": [_result(entry, timings.get(entry.name), base, flops, settings, ceilings) for entry in entries],
        "ceilings": ceilings,
        "memory": {
            "available_before_bytes": available,
            "peak_rss_bytes": peak,
            "pss_bytes": pss_bytes(),
            "note": "the process holds the state of every contender at once; peak_above_start_bytes is one step's own",
        },
        "operators": hcops.describe(),
        "machine": machine.to_dict(),
        "core_plan": core_plan.to_dict(),
        "versions": {"dithc": version("dithc"), "python": platform.python_version(), "torch": torch.__version__},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def step_table(result: Mapping[str, Any]) -> str:
    """The result as a table for a terminal."""
    settings, ceilings = result["settings"], result["ceilings"]
    lines = [
        f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}, {settings['threads']} thread(s), "
        f"median of {settings['repeats']} steps after {settings['warmup']}",
        f"{'contender':<12}{'seconds':>10}{'+- MAD':>9}{'ratio':>8}{'images/s':>10}"
        f"{'GFLOP/s':>10}{'(linear)':>10}{'of GEMM':>9}{'peak GiB':>10}",
    ]
    for row in result["contenders"]:
        if row["status"] != "ok":
            lines.append(f"{row['name']:<12}{row['status']}: {row['reason']}")
            continue
        rates, peak = row["gflop_per_second"], row["peak_above_start_bytes"]
        ratio = f"{row['ratio_to_first']:.3f}" if row["ratio_to_first"] is not None else "-"
        lines.append(
            f"{row['name']:<12}{row['seconds']['median']:>10.4f}{row['seconds']['mad']:>9.4f}{ratio:>8}"
            f"{row['images_per_second']:>10.2f}{rates['training_total']:>10.1f}{rates['training_linear']:>10.1f}"
            f"{row['share_of_gemm_ceiling']:>9.0%}{f'{peak / GIB:.2f}' if peak else '-':>10}"
        )
    lines.append(
        f"ceilings: matrix product of {GEMM_SIZE}^3 {ceilings['gemm_gflop_per_second']:.1f} GFLOP/s, "
        f"copy {ceilings['copy_gb_per_second']:.1f} GB/s read and written"
    )
    return "\n".join(lines)


def _check(settings: StepSettings) -> None:
    unknown = [name for name in settings.compare if name not in CONTENDERS]
    if unknown or not settings.compare or len(set(settings.compare)) < len(settings.compare):
        expected = f"each at most once, of: {', '.join(CONTENDERS)}"
        raise problem("bench --compare", got=",".join(settings.compare), expected=expected, remedy="correct --compare")
    for name in ("batch", "warmup", "repeats", "threads"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise problem(f"bench --{name}", got=value, expected="1 or more", remedy=f"correct --{name}")


def _prepare(name: str, settings: StepSettings) -> _Entry:
    """Builds a contender and warms it; what keeps it from running becomes its status."""
    contender = CONTENDERS[name]
    if obstacle := contender.obstacle():
        log.warning("%s is skipped: %s", name, obstacle)
        return _Entry(name=name, status="skipped", reason=obstacle)
    log.info("%s: warming up", name)
    torch.manual_seed(settings.seed)
    model, schedule = DiT.from_preset(settings.model, **settings.overrides), Schedule.linear()
    batch = Batch.random(model, schedule, size=settings.batch, seed=settings.seed)
    step = TrainingStep(model, contender.wrap(model), batch=batch, schedule=schedule, dtype=settings.dtype)
    start = time.perf_counter()
    try:
        first_loss = step()
        seconds = time.perf_counter() - start
        for _ in range(settings.warmup - 1):
            step()
    except UserError:
        raise
    except Exception as error:
        out_of_memory = isinstance(error, MemoryError) or OUT_OF_MEMORY in str(error)
        log.warning("%s did not run", name, exc_info=error)
        return _Entry(name=name, status="oom" if out_of_memory else "failed", reason=str(error).splitlines()[0])
    return _Entry(name=name, step=step, first_loss=first_loss, first_step_seconds=seconds)


def _measure(entries: list[_Entry], settings: StepSettings) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Lets contenders and ceilings take turns, then takes the memory of one step of each contender."""
    steps = {entry.name: entry.step for entry in entries if entry.step is not None}
    gemm, copy = GemmCeiling(torch.bfloat16 if settings.dtype == "bf16" else torch.float32), CopyCeiling()
    gemm()
    copy()
    timings = take_turns({**steps, "gemm ceiling": gemm, "copy ceiling": copy}, repeats=settings.repeats)
    for entry in entries:
        if entry.step is not None and reset_peak_rss():
            before = peak_rss_bytes()
            entry.step()
            entry.peak_above_start_bytes = peak_rss_bytes() - before
    gemm_time, copy_time = timings["gemm ceiling"], timings["copy ceiling"]
    return timings, {
        "gemm_size": GEMM_SIZE,
        "gemm_gflop_per_second": gemm.flop / gemm_time.median / GIGA,
        "gemm_seconds": gemm_time.to_dict(),
        "copy_bytes": COPY_BYTES,
        "copy_gb_per_second": copy.traffic_bytes / copy_time.median / GIGA,
        "copy_seconds": copy_time.to_dict(),
    }


def _result(
    entry: _Entry,
    timing: Timing | None,
    base: Timing | None,
    flops: Flops,
    settings: StepSettings,
    ceilings: Mapping[str, Any],
) -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.name, "what": CONTENDERS[entry.name].what, "status": entry.status}
    if entry.step is None or timing is None:
        return row | {"reason": entry.reason}
    rates = {name: getattr(flops, name) * settings.batch / timing.median / GIGA for name in CONVENTIONS}
    return row | {
        "seconds": timing.to_dict(),
        "ratio_to_first": timing.ratio_to(base) if base else None,
        "images_per_second": settings.batch / timing.median,
        "gflop_per_second": rates,
        "share_of_gemm_ceiling": rates["training_total"] / ceilings["gemm_gflop_per_second"],
        "first_loss": entry.first_loss,
        "first_step_seconds": entry.first_step_seconds,
        "state_bytes": entry.step.state_bytes,
        "peak_above_start_bytes": entry.peak_above_start_bytes,
    }
