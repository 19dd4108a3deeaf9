"""The training step on a described machine of any number of nodes, played as events; and how a sampling is best cut there.

What: `workload` (a model's gradients, their order and arithmetic), `Computing` (a measured or published time of a step),
`Cluster` with `Links` (LogGP, shared cards, memory of a node), `Method` (how gradients become sums), and `run`, which plays
steps on each number of nodes and returns curves for JSON; `Settings` says what to run. `sampling` predicts a sampling there: all
ways to cut it among ranks, best first.
Why: nobody has 1,024 nodes on the day of a decision; and a model that does not reproduce published scaling from published inputs
should not be believed about anything else.
Exact, within the model: buckets and their order, which sum waits for which gradient and for which sum before it, ranks that wait
for the slowest, computing slowed down while a thread without a core of its own communicates, the same draws for the same seed.
Approximate: a rank's speed is one draw for the whole step; the time of one sum is a closed form (LogGP with cards shared
evenly and without contention inside the network; chunks as a pipeline with one slowest resource); gradients of a bucket are
complete when their share of the backward pass's arithmetic is done; the time of computing is in proportion to the images, but
for a fixed part that is given.
How to change it: another collective is a closed form in `links.py` and a name in `COLLECTIVES`; another thing that delays ranks
belongs into `events.py`; other published numbers into `paper.py`.
"""

from dithc.simulate import sampling
from dithc.simulate.links import Links
from dithc.simulate.run import Settings, run, table
from dithc.simulate.scaling import Cluster, Computing, Method

__all__ = ["Cluster", "Computing", "Links", "Method", "Settings", "run", "sampling", "table"]
