"""The training step on another PyTorch device, such as a GPU, with PyTorch's operators, eager and compiled."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from dithc.bench.ceilings import COPY_BYTES, GEMM_SIZE
from dithc.bench.record import GIGA, circumstances, prepare_threads
from dithc.bench.step.measure import CONVENTIONS, StepSettings, check
from dithc.bench.step.variants import CONTENDERS, Batch, Training
from dithc.bench.timing import Timing, take_turns
from dithc.diffusion import Schedule, training_loss
from dithc.log import logger, problem
from dithc.model import DiT, flops_per_image

log = logger(__name__)
NAMES = ("eager", "compile")


def bench_device(settings: StepSettings, device: str) -> dict[str, Any]:
    """Measure on a torch device without dithc's operators. Return the format of `bench_step`.

    Raises:
        UserError: the device does not exist, or a setting is invalid.
    """
    check(settings)
    if device == "cuda" and not torch.cuda.is_available():
        raise problem(
            "bench step --device cuda",
            got=f"PyTorch {torch.__version__}, which finds no GPU",
            expected="a GPU, its driver, and a PyTorch with CUDA",
            fix="remove --device, or install that PyTorch in a separate environment",
        )
    machine, core_plan = prepare_threads(settings.threads)
    torch.manual_seed(settings.seed)
    model, schedule = DiT.from_preset(settings.model, **settings.overrides), Schedule.linear()
    batch = Batch.random(model, schedule, size=settings.batch, seed=settings.seed)
    on_device = Batch(*(getattr(batch, name).to(device) for name in ("x0", "noise", "x_t", "t", "y")))
    training = Training(model.to(device), batch=on_device, dtype=settings.dtype)
    rows, steps = list[dict[str, Any]](), dict[str, Callable[[], object]]()
    for name in NAMES:
        row: dict[str, Any] = {"name": name, "what": CONTENDERS[name].what, "backend": "reference", "status": "ok"}
        rows.append(row)
        try:
            steps[name] = _step(training, name, device)
            row["first_loss"] = _timed(row, steps[name])
            for _ in range(settings.warmup):
                steps[name]()
        except Exception as error:
            log.warning("%s failed", name, exc_info=error)
            is_memory = isinstance(error, torch.OutOfMemoryError)
            told = (str(error).splitlines() or [type(error).__name__])[0]
            row |= {"status": "oom" if is_memory else "failed", "reason": told}
            steps.pop(name, None)
    ceilings, work = _ceilings(settings, device)
    timings = take_turns({**steps, **ceilings}, repeats=settings.repeats, are_units=True)
    flops = flops_per_image(model.config)
    for row in rows:
        if row["status"] == "ok":
            row |= _told(timings[row["name"]], flops, settings)
    return {
        "bench": "step",
        "settings": asdict(settings) | {"threads": torch.get_num_threads(), "optimizer": "AdamW", "device": device},
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "model": asdict(model.config),
        "gflop_per_image": {name: getattr(flops, name) / GIGA for name in CONVENTIONS},
        "contenders": rows,
        "ceilings": {
            "gemm_size": GEMM_SIZE,
            "gemm_gflop_per_second": work["gemm"] / timings["gemm"].median / GIGA,
            "copy_gb_per_second": work["copy"] / timings["copy"].median / GIGA,
            "multiply_add_unit": None,
        },
        "memory": {"peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None},
        "energy": {"status": "skipped", "reason": "processor counters do not include the device"},
        **circumstances(machine, core_plan),
    }


def _step(training: Training, name: str, device: str) -> Callable[[], float]:
    """Return a step of forward, loss, backward and AdamW that synchronizes the device."""
    forward = CONTENDERS[name].wrap(training.model)
    batch = training.batch

    def step() -> float:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=training.dtype == "bf16"):
            output = forward(batch.x_t, batch.t, batch.y)  # (N, C or 2C, height, width)
        losses = training_loss(
            output, objective=training.objective, x0=batch.x0, x_t=batch.x_t, t=batch.t, noise=batch.noise
        )
        loss = losses["loss"].mean()
        loss.backward()  # type: ignore[no-untyped-call]
        training.torch_adamw.step()
        for weight in training.weights:
            weight.grad = None
        _wait(device)
        return float(loss.detach())

    return step


def _timed(row: dict[str, Any], step: Callable[[], object]) -> object:
    start = time.perf_counter()
    loss = step()
    row["first_seconds"] = time.perf_counter() - start
    return loss


def _ceilings(settings: StepSettings, device: str) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """Return a large product and a copy on the device, with their operations and bytes."""
    dtype = torch.bfloat16 if settings.dtype == "bf16" else torch.float32
    a = torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=dtype, device=device)
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)

    def gemm() -> None:
        torch.mm(a, a)
        _wait(device)

    def copy() -> None:
        target.copy_(source)
        _wait(device)

    gemm()
    copy()
    return {"gemm": gemm, "copy": copy}, {"gemm": 2.0 * GEMM_SIZE**3, "copy": 2.0 * source.nbytes}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _told(timing: Timing, flops: Any, settings: StepSettings) -> dict[str, Any]:
    return {
        "seconds": timing.to_dict(),
        "speedup_of_dithc": None,
        "images_per_second": settings.batch / timing.median,
        "gflop_per_second": {
            name: getattr(flops, name) * settings.batch / timing.median / GIGA for name in CONVENTIONS
        },
        "share_of_peak": None,
        "share_of_gemm_ceiling": None,
        "peak_above_start_bytes": None,
    }
