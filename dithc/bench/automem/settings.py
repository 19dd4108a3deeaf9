"""Settings of `dithc bench automem`: parts, models, budgets and numbers of steps."""

from dataclasses import dataclass
from pathlib import Path

from dithc.bench.trainings import RunSettings

PARTS = ("budget", "file", "largest-batch", "pool", "resident")


@dataclass(frozen=True, kw_only=True)
class AutoMemSettings(RunSettings):
    """Settings of the AutoMem benchmark.

    Attributes:
        only: subset of PARTS.
        model: preset of `budget`, `file` and `largest-batch`; `pool` and `resident` use `step_models`.
        batch: images per step; `largest-batch` tries this size first and never exceeds `most`.
        budget: bytes of the fastest tier in `budget`, as a fraction of the memory of unmanaged training.
        limit: process limit in `file`, as a fraction of the unmanaged peak.
        memory_gib: process limit in `largest-batch`.
        fast_share: fastest tier in `file` and `largest-batch`, as a fraction of the limit minus the bare process.
        repeats: steps of each variant in `pool` and `resident`.
        threads: compute threads; None selects the core plan's.
        warmup: untimed steps of a run; a managed run records two and moves data in the third.
    """

    only: tuple[str, ...] = PARTS
    model: str = "DiT-XL/2"
    batch: int = 8
    budget: float = 0.4
    limit: float = 0.6
    folder: Path = Path()
    file_gib: float = 16.0
    memory_gib: float = 24.0
    fast_share: float = 0.75
    most: int = 64
    step_models: tuple[str, ...] = ("DiT-S/2", "DiT-B/2")
    repeats: int = 15
    threads: int | None = None
    warmup: int = 3
    seed: int = 0
