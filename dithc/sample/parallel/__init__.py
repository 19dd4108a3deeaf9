"""Distributed sampling: several ranks generate one image.

Purpose: without it, a sampling run occupies at most one rank per shard. A partition changes the time, never the image.
Contents: `SamplingGroup` is a rank's place in its group, `ParallelDenoiser` the distributed network; `windows` handles large
scenes. `rank_groups` returns the ranks of each group. `dithc.engine.cost` selects degrees by predicted seconds.
Invariants: samplers, guidance and the network are independent of ranks. Every rank of a group holds complete latents.
Only the rows of a network call are partitioned, and complete images are decoded by different ranks. Sampler decisions
therefore agree on all ranks, and none depends on a rank's clock, memory or number.
Extending: a new partition is a callable around the network. Its degree is configured in `machine.sampling`.
"""

from dithc.sample.parallel import windows
from dithc.sample.parallel.parallel_denoiser import ParallelDenoiser
from dithc.sample.parallel.sampling_group import SamplingGroup, rank_groups

__all__ = ["ParallelDenoiser", "SamplingGroup", "rank_groups", "windows"]
