"""Distributed sampling: several ranks generate one image.

Purpose: without it, a sampling run occupies at most one rank per shard. A partition changes the time, never the image.
Contents: `Degrees` are the numbers of sharing ranks, `least` selects them for a `Work` (`planner`), `groups_of`
returns the ranks of each group. `Team` is a rank's place in its group, `Denoiser` the distributed network; `windows`
handles large scenes.
Invariants: samplers, guidance and the network are independent of ranks. Every rank of a group holds complete latents.
Only the network call (rows, tokens, or blocks) and the decoder (image rows) are partitioned. Sampler decisions
therefore agree on all ranks, and none depends on a rank's clock, memory or number.
Extending: a new partition is a callable around the network. Degrees that preserve results are configured in
`machine.sampling`, other degrees in the evaluation.
"""

from dithc.sample.parallel import planner, windows
from dithc.sample.parallel.degrees import Degrees, Work, groups_of
from dithc.sample.parallel.parallel_denoiser import Denoiser
from dithc.sample.parallel.planner import least
from dithc.sample.parallel.sampling_group import Team

__all__ = ["Degrees", "Denoiser", "Team", "Work", "groups_of", "least", "planner", "windows"]
