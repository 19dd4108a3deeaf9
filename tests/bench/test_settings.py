"""Settings without sense are errors before any measurement, and name the option."""

from pathlib import Path

import pytest

from dithc.bench.automem import AutoMemSettings, bench_automem
from dithc.bench.operators import TuneSettings, tune
from dithc.bench.operators.ops import OpsSettings, bench_ops
from dithc.bench.step import StepSettings, bench_step
from dithc.bench.step.loss_curves import CurveSettings, bench_curves
from dithc.bench.training.scaling import ScalingSettings, bench_scaling
from dithc.bench.training.stepwise import StepwiseSettings, bench_stepwise
from dithc.bench.training.strategies import StrategiesSettings, bench_strategies
from dithc.core.logging import UserError

MEASURED = {
    "automem": (bench_automem, AutoMemSettings, {}),
    "curves": (bench_curves, CurveSettings, {}),
    "ops": (bench_ops, OpsSettings, {"models": ("DiT-S/2",), "backend": "reference"}),
    "scaling": (bench_scaling, ScalingSettings, {"mode": "weak"}),
    "step": (bench_step, StepSettings, {}),
    "stepwise": (bench_stepwise, StepwiseSettings, {}),
    "strategies": (bench_strategies, StrategiesSettings, {}),
    "tune": (tune, TuneSettings, {}),
}
WRONG = [
    ("automem", {"parts": ("everything",)}, "--parts"),
    ("automem", {"model": "DiT-Q/2"}, "--model"),
    ("automem", {"step_models": ("S/2",)}, "--step-models"),
    ("automem", {"fast_memory_fraction": 1.0}, "--fast-memory-fraction"),
    ("automem", {"spill_gib": -1.0}, "--spill-gib"),
    ("automem", {"warmup": 1}, "--warmup"),
    ("automem", {"spill_folder": Path("/nowhere/at/all")}, "--spill-folder"),
    ("curves", {"platform": "gpu"}, "bench curves --platform"),
    ("curves", {"batch": 0}, "bench curves --batch"),
    ("ops", {"ops": ("gemm", "magic")}, "magic"),
    ("ops", {"models": ("DiT-Q/2",)}, "DiT-Q/2"),
    ("ops", {"libraries": ("blis",)}, "blis"),
    ("ops", {"rounds": 0}, "1 or more"),
    ("ops", {"backend": "magic"}, "unknown back end"),
    ("scaling", {"models": ("DiT-Q/2",)}, "--models"),
    ("scaling", {"models": ()}, "--models"),
    ("scaling", {"ranks": (2, 1)}, "--ranks"),
    ("scaling", {"mode": "strong", "batch": 3}, "--batch"),
    ("step", {"compare": ("eager", "magic")}, "numba, eager, compile"),
    ("step", {"compare": ("eager", "eager")}, "at most once"),
    ("step", {"model": "DiT-Q/2", "compare": ("eager",)}, "unknown model preset"),
    ("stepwise", {"model": "DiT-Q/2"}, "--model"),
    ("stepwise", {"stages": ("magic",)}, "--stages"),
    ("stepwise", {"ranks": 3}, "--batch"),
    ("strategies", {"strategies": ("ddp",)}, "--strategies"),
    ("strategies", {"batches": (8, 0)}, "--batches"),
    ("strategies", {"rounds": 0}, "--rounds"),
    ("strategies", {"memory_limit_gib": 0.0}, "--memory-limit"),
    ("tune", {"batch": 0}, "tune --batch"),
    ("tune", {"rounds": 0}, "tune --rounds"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), WRONG)
def test_invalid_settings_are_rejected_before_measurement(kind, changes, message):
    measure, settings, base = MEASURED[kind]
    with pytest.raises(UserError, match=message):
        measure(settings(**base | changes))
