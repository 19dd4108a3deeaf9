"""Benchmark of AutoMem: training with less fast memory or less total memory, and the memory pool.

The parts `budget` and `file` start processes (`training_runs.py`), `pool` and `resident` run here (`steps.py`).
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from dithc.bench.automem.steps import pool_rows, resident_rows
from dithc.bench.automem.training_runs import PARTS, AutoMemSettings, TrainingRuns
from dithc.bench.environment import circumstances, prepare_threads, require, require_among, require_at_least
from dithc.bench.resume import MeasurementStopped, current_session
from dithc.core.logging import get_logger
from dithc.model import PRESETS

log = get_logger(__name__)
COUNTED = {
    "takes_bytes": "peak resident size of the unmanaged process, minus its size before the model was built",
    "peak_fast_bytes": "peak of the physical bytes in the fastest tier, including idle blocks of the pool",
    "stall_share": "seconds of a step for copies or waits for them, over its seconds: median of the timed steps",
    "slower": "seconds per step over the unmanaged seconds in the same round",
    "page_faults": "minor page faults of the process in a step (getrusage)",
}


def bench_automem(settings: AutoMemSettings) -> dict[str, Any]:
    """Run the parts and return their results for JSON."""
    _check(settings)
    machine, core_plan = prepare_threads(settings.threads)
    trainings = TrainingRuns(settings, threads=core_plan.ranks[0].num_threads)
    measure: dict[str, Callable[[], dict[str, Any]]] = {
        "budget": trainings.budget,
        "file": trainings.file,
        "pool": lambda: pool_rows(settings),
        "resident": lambda: resident_rows(settings),
    }
    parts = {}
    for name in settings.parts:
        log.info("part %s", name)
        with suppress(MeasurementStopped):
            parts[name] = current_session().unit(f"part {name}", measure[name])
    return {
        "bench": "automem",
        "settings": asdict(settings) | {"spill_folder": str(settings.spill_folder.resolve())},
        "parts": parts,
        "counted": COUNTED,
        **circumstances(machine, core_plan),
    }


def _check(settings: AutoMemSettings) -> None:
    require_among("bench --parts", settings.parts, PARTS)
    require_among("bench --model", [settings.model], PRESETS)
    require_among("bench --step-models", settings.step_models, PRESETS)
    for option, share in (
        ("--fast-memory-fraction", settings.fast_memory_fraction),
        ("--memory-limit-fraction", settings.memory_limit_fraction),
    ):
        require(0 < share < 1, f"bench {option}", share, "a share between 0 and 1")
    require(settings.spill_gib > 0, "bench --spill-gib", settings.spill_gib, "more than 0 GiB")
    require_at_least(settings, batch=1, rounds=1, warmup=2, steps=1, step_rounds=1, threads=1)
    is_valid = settings.spill_folder.is_dir() or "file" not in settings.parts
    require(is_valid, "bench --spill-folder", settings.spill_folder, "a folder on the disk for the file tier")
