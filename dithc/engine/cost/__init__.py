"""Predicted time and memory of work on a machine: the only cost model of requests, plans and simulations.

Purpose: estimate a training run before it starts, on this machine, on the nodes of a profile, or on described nodes.
Contents: `workload` (arithmetic and gradients of a DiT in closed form), `memory` (bytes of a rank by category), `links` (LogGP,
shared cards, memory of a node), `events` (a step of ranks and sums), `scenario` (steps on increasing numbers of nodes with
stragglers), `plans` (all arrangements of a run) and `estimates` (their seconds, memory and order), `sampling` (all degrees of a
sampling run), `balanced_shares` of unequal ranks, `records` (files of plans and outcomes).
Invariants: except for `records`, pure functions of settings, descriptions and measured numbers; equal arguments give equal
results on any machine.
Exact within the model: buckets and their order; the gradient and the previous sum that each sum waits for; ranks that wait for
the slowest rank; equal draws for equal seeds.
Approximate: the time of a sum is a closed form (LogGP with evenly shared cards, without contention inside the network; chunks
as a pipeline with one slowest resource). Computing time is linear in the images of a micro-batch.
Extending: another collective is a closed form in `links` and a name in `COLLECTIVES`. Another arrangement is a field of
`plans.TrainingPlan`, with its seconds and bytes in `plans`.
"""

from dithc.engine.cost import estimates, links, memory, plans, records, sampling, scenario
from dithc.engine.cost.links import Links
from dithc.engine.cost.shares import balanced_shares
from dithc.engine.cost.workload import ModelWorkload

__all__ = [
    "Links",
    "ModelWorkload",
    "balanced_shares",
    "estimates",
    "links",
    "memory",
    "plans",
    "records",
    "sampling",
    "scenario",
]
