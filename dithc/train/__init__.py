"""Training: composes the rooms in one order, and survives whatever the machine does to it.

What: `train(job, group)` pre-trains or fine-tunes a DiT up to a step and writes a manifest; `export` writes weights for
other programs; `rehearse` makes steps on random latents, for measurements.
The order (`compose.py`): ranks are connected and placed on cores by the caller -> inputs and the store they name -> is it
done already? -> tiers of memory -> lease -> requests to stop -> latents and batches -> model (from the seed, the same on all
ranks; then the weights of an earlier run or file) -> AutoMem -> strategy (plain, or DistributedDataParallel) -> optimizer ->
average of the weights -> newest checkpoint -> loop (its first step is watched, the others follow the plan of memory) ->
manifest.
Why: the walltime is shorter than the training, nodes die, and a driver starts things twice; so the result must not depend
on how often, or on how many ranks, the job was started.
Invariants:
- A resumed run equals an uninterrupted one at the same number of ranks and threads, to the bit. All random draws are
  counters of (seed, epoch, sample); nothing random has a state to be saved.
- The global batch, in content and order, does not depend on the number of ranks or on micro-batches.
- Master weights, optimizer state and average are fp32, whatever the type of the arithmetic.
- A checkpoint is written by every rank, its own pieces, from a copy of the state between two steps; rank 0 commits it, and
  writes all else. A checkpoint, then the manifest; nothing after a loss that is not finite.
- All ranks leave together, with one status: 0 done, 75 stopped and saved, 76 another trainer holds the run.
How to change it: a strategy is a branch of `strategies/strategy.py`; what a checkpoint holds is in `checkpoints/content.py`; in
which memory a rank keeps what is decided in `memory.py` and nowhere else; a new metric is a key of `step.Trainer.step`.
`tests/train/golden_losses.json` pins the numbers: regenerate it only for a change of mathematics.
"""

from dithc.train.checkpoints import export
from dithc.train.compose import train
from dithc.train.job import DONE, HELD, STOPPED, Job
from dithc.train.rehearse import Rehearsal, rehearse

__all__ = ["DONE", "HELD", "STOPPED", "Job", "Rehearsal", "export", "rehearse", "train"]
