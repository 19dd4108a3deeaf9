"""Simulation of the training step on a machine with any number of nodes, and prediction of sampling time there.

Purpose: estimate scaling before the nodes are available. A model that reproduces published scaling from published
inputs is credible for other inputs.
Contents: `workload` (a model's gradients, their order and arithmetic), `ComputeTime` (measured or published time of a
step), `Links` (LogGP, shared cards, memory of a node), `ReductionMethod` (gradient exchange), `Scenario`, which simulates steps
on each number of nodes, and `simulation`, which returns its curves for JSON. `SimulationSettings` configures it. `sampling`
predicts a sampling run for all partitions over ranks, best first.
Exact within the model: buckets and their order; the gradient and the previous sum that each sum waits for; ranks that
wait for the slowest rank;
equal draws for equal seeds.
Approximate: a rank's speed is one draw per step. The time of a sum is a closed form (LogGP with evenly shared cards and
without contention inside the network; chunks as a pipeline with one slowest resource). Gradients of a bucket are
complete when their share of the backward arithmetic is done. Computing time is proportional to the images, except for a
given constant part.
Extending: another collective is a closed form in `links.py` and a name in `COLLECTIVES`. Other delays of ranks belong
in `events.py`, other published numbers in `paper_scaling.py`.
"""

from dithc.bench.simulate import sampling
from dithc.bench.simulate.simulation import SimulationSettings, format_curves, run_simulation

__all__ = ["SimulationSettings", "format_curves", "run_simulation", "sampling"]
