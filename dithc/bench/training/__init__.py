"""Training runs in separate, interleaved processes: under several strategies, on more ranks, component by component.

`strategies`, `scaling` and `stepwise` each contain one measurement and its settings. `interleaved` alternates the runs of several
`TrainingVariant`s; `turns` alternates the steps of runs that exist at the same time. `run_training` executes one
`TrainingResult`, observes its memory, and limits it. No run outlives the benchmark. To add a measurement, add a file like
`scaling.py`.
"""

from dithc.bench.training import scaling, stepwise, strategies
from dithc.bench.training.run import (
    RunSettings,
    TrainingResult,
    TrainingVariant,
    interleaved,
    row_of,
    run_training,
    time_over,
)

__all__ = [
    "RunSettings",
    "TrainingResult",
    "TrainingVariant",
    "interleaved",
    "row_of",
    "run_training",
    "scaling",
    "stepwise",
    "strategies",
    "time_over",
]
