"""Training: composes the rooms in one order, and survives whatever the machine does to it.

What: `train(job, group)` pre-trains or fine-tunes a DiT up to a step and writes a manifest; `export` writes weights for
other programs; `rehearse` makes steps on random latents, for measurements. The same `Strategy`, `Optimizer` and `Checkpoints`
serve any module and a loop of one's own:

    with comm.ranks() as group:                                    # dithc launch --ranks 2 -- my.py
        torch.manual_seed(0)
        strategy = train.Strategy(Net(), group, sharding="zero1")
        net = strategy.settle(example)
        optimizer = train.Optimizer(strategy, lr=1e-3)
        with train.Checkpoints("store/mine", group, optimizer) as checkpoints:
            for step in range(checkpoints.step + 1, 1001):
                strategy.backward(loss_of(net, batch_of(step, group.rank)))
                optimizer.step()
                if not checkpoints.after(step):
                    break

The order (`run/compose.py`): ranks are connected and placed on cores by the caller -> inputs and the store they name -> is it
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
from dithc.train.job import Job
from dithc.train.optimizer import Optimizer
from dithc.train.own_loop import Checkpoints
from dithc.train.rehearse import Rehearsal, rehearse
from dithc.train.run import train
from dithc.train.strategies import Strategy

__all__ = ["Checkpoints", "Job", "Optimizer", "Rehearsal", "Strategy", "export", "rehearse", "train"]
