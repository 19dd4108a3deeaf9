"""What `dithc bench automem` measures: its parts, their models, budgets and numbers of steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dithc.bench.ceilings import Precision

PARTS = ("budget", "file", "largest-batch", "pool", "resident")


@dataclass(frozen=True, kw_only=True)
class AutoMemSettings:
    """What to measure.

    Attributes:
        only: of PARTS.
        model: preset of `budget`, `file` and `largest-batch`.
        overrides: fields of the presets to change, by name.
        batch: images a step; in `largest-batch` that of the first try.
        dtype: of the arithmetic.
        budget: of the fastest tier in `budget`, as a share of what the training takes unmanaged.
        limit: on the process in `file`, as a share of the peak of the unmanaged one.
        folder: of the file tier.
        file_gib: of the file tier.
        memory_gib: limit on the process in `largest-batch`.
        fast_share: of what the limit leaves beside the bare process, the budget of the fastest tier in `file` and
            `largest-batch`; the rest is for what does not come from a tier.
        most: the largest batch to try.
        step_models: presets of `pool` and `resident`.
        repeats: steps of each contender there.
        threads: compute threads; None takes the core plan's.
        rounds: runs of each contender; the first order, then the reverse.
        warmup: steps of a run before the clock: two of a managed one are recorded, the third one moves what is to rest elsewhere.
        steps: steps of a run on the clock.
        seed: of weights and batches.
    """

    only: tuple[str, ...] = PARTS
    model: str = "DiT-XL/2"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 8
    dtype: Precision = "fp32"
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
    rounds: int = 2
    warmup: int = 3
    steps: int = 3
    seed: int = 0
