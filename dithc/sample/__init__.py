"""Sampling: a checkpoint and seeds made into images; who makes them does not matter.

What: `sample(job, group)` draws the images of an evaluation into resumable shards, a picture and a manifest; `search(job)` finds
the timesteps at which few steps of its solver come nearest to many, `search_scaling(job)` how much more noise they should take
out; `degrees_table(job, group)` says what ways there are to cut it among ranks, and how long each would take.
Why: 10,000 images take hours on many dies; any rank must be able to make any of them, twice if need be, and always get the
same picture.
Invariants:
- Image i is decided by (seed, i): its label, its first noise and every later noise. Ranks, batches and order change only
  how sums are rounded.
- Labels are drawn uniformly from the classes that have train samples, as published scores of class-conditional models are
  made; they are not balanced by index.
- A shard is the unit of work and of resuming. It counts when its sidecar agrees with its bytes and with what is asked now;
  else it is made again, and the log says why. Raising the number of images keeps the shards there are.
- Both halves of guidance go through the network in one batch, where they are of one network.
- Which weights, which step and which solver made the images stands in the manifest.
How to change it: a solver enters through dithc.diffusion and its name in the configuration; what is stored of an image is
in `shards.py`.
"""

from dithc.sample.compose import sample
from dithc.sample.degrees_table import degrees_table
from dithc.sample.job import Job
from dithc.sample.search import search, search_scaling

__all__ = ["Job", "degrees_table", "sample", "search", "search_scaling"]
