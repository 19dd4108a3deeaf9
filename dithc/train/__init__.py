"""Training runs that survive interruption.

Purpose: a run exceeds the walltime, nodes fail, and drivers start jobs twice. The result must not depend on restarts.

Contents: `train(job, group)` pre-trains or fine-tunes a DiT up to a step and writes a manifest. `export` writes weights
for other programs. `step_benchmark` runs steps on random latents, for measurements. `Strategy`, `Optimizer` and
`CheckpointManager` also serve other modules and custom loops; see their examples.

Order (`pipeline/`): inputs and store -> finished? -> memory tiers -> lease -> stop requests -> latents and batches -> model
(seeded, then earlier weights) -> AutoMem -> strategy -> optimizer -> average -> newest checkpoint -> loop -> manifest.

Invariants:

- A resumed run is bitwise equal to an uninterrupted run with the same number of ranks and threads. Random draws are
  functions of (seed, epoch, sample), without saved state.
- The global batch and its order do not depend on ranks or micro-batches.
- Master weights, optimizer state and average are fp32.
- Every rank writes its pieces of a checkpoint from a copy taken between two steps; rank 0 commits. Bad losses are never
  saved.
- All ranks exit with one status: 0 done, 75 stopped and saved, 76 another trainer holds the run.

Extending: a strategy is a branch of `strategies/strategy.py`. Checkpoint contents are in `checkpoints/state.py`, and
placement is only in `memory_tiers.py`. A metric is a key of `step.Trainer.step`. `tests/train/golden_losses.json` pins the
numbers: regenerate it only if the mathematics change.
"""

from dithc.train.checkpoint_manager import CheckpointManager
from dithc.train.checkpoints import export
from dithc.train.job import Paths, TrainingJob
from dithc.train.optimizer import Optimizer
from dithc.train.pipeline import train
from dithc.train.step_benchmark import StepBenchmark, benchmark_in_sequence, benchmark_steps
from dithc.train.strategies import Strategy

__all__ = [
    "CheckpointManager",
    "Optimizer",
    "Paths",
    "StepBenchmark",
    "Strategy",
    "TrainingJob",
    "benchmark_in_sequence",
    "benchmark_steps",
    "export",
    "train",
]
