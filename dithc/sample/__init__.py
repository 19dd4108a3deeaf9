"""Sampling: reproducible generation of images from a checkpoint and seeds, on any number of ranks.

`sample(job, group)` draws the images of an evaluation into resumable shards, a preview image and a manifest.
`search_guidance_scale(job)` finds the guidance scale. `degrees_table(job, group)` lists the valid parallel degrees with their
predicted durations. Drawing 10,000 images takes hours on many dies. Any rank must therefore be able to compute any image,
repeatedly if necessary, with the same result.

Invariants:

- (seed, i) determines image i: its label, its initial noise and all later noise. Ranks, batches and order change only
  the rounding of sums.
- Labels are drawn uniformly from the classes with train samples, as for published scores of class-conditional models.
  They are not balanced by index.
- A shard is the unit of work and of resumption. It is valid if its sidecar matches its bytes and the current request.
  Otherwise it is regenerated and the log gives the reason. A larger number of images keeps existing shards.
- Both halves of guidance run in one batch if they use the same network.
- The manifest records weights, step and solver.

Extending: a solver is added in dithc.diffusion and by its name in the configuration. `shards.py` defines the stored
data of an image.
"""

from dithc.sample.guidance_search import search_guidance_scale
from dithc.sample.job import SamplingJob
from dithc.sample.pipeline import sample
from dithc.sample.plan_table import degrees_table

__all__ = ["SamplingJob", "degrees_table", "sample", "search_guidance_scale"]
