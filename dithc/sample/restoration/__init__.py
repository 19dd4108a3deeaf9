"""Restoration of scenes: unobserved pixels and bands are sampled from a trained prior, given all observed values.

Purpose: a prior that was trained once fills gaps, refines coarse bands and predicts missing bands, with an uncertainty for
each pixel. `restore(job, group)` writes members, statistics and flags of every scene as GeoTIFF, and a manifest.
Contents: `blocks` divides a scene, `scenes` reads windows of pixels and their state, `hiding` withholds
pixels, `work` samples the members of a block,
`outputs` stores parts and assembles images by rows, `pipeline` distributes the work over ranks.

Invariants:

- (seed, scene, member, place) determines all noise. A block is sampled by one rank, so ranks do not change any bit.
- Other scenes of the dataset do not affect a scene. A finished scene is kept until its settings, prior or content change.
- Observed pixels are returned unchanged, in physical units.
- Memory depends on `block_size`, not on the size of a scene. A finished part of a block is kept on interruption.
- The state of a pixel depends on its place only, not on blocks.

Extending: another observation is an operator of `dithc.diffusion.restoration` and its group in `work.py`. Another statistic
is an entry of `outputs.STATISTICS`.
"""

from dithc.sample.restoration.job import RestorationJob
from dithc.sample.restoration.outputs import ComparedPart, RestoredScene
from dithc.sample.restoration.pipeline import restore
from dithc.sample.restoration.scenes import Flag
from dithc.sample.restoration.work import BlockSampler

__all__ = ["BlockSampler", "ComparedPart", "Flag", "RestorationJob", "RestoredScene", "restore"]
