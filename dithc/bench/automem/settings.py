"""Settings of `dithc bench automem`: parts, models, budgets and numbers of steps."""

from dataclasses import dataclass
from pathlib import Path

from dithc.bench.training import RunSettings

PARTS = ("budget", "file", "largest-batch", "pool", "resident")


@dataclass(frozen=True, kw_only=True)
class AutoMemSettings(RunSettings):
    """Settings of the AutoMem benchmark, described by `dithc bench automem --help`."""

    only: tuple[str, ...] = PARTS
    model: str = "DiT-XL/2"
    batch: int = 8
    budget: float = 0.4
    limit: float = 0.6
    folder: Path = Path()
    spill_gib: float = 16.0
    memory_gib: float = 24.0
    fast_share: float = 0.75
    most: int = 64
    step_models: tuple[str, ...] = ("DiT-S/2", "DiT-B/2")
    repeats: int = 15
    threads: int | None = None
    warmup: int = 3
    seed: int = 0
