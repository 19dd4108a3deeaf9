"""Sampling of one image on several ranks.

Purpose: shards occupy only as many ranks as there are shards. A cut changes time, never the image.
Contents: `Degrees` are the numbers of sharing ranks, `least` chooses them for a `Work` (`choosing`), `groups_of` returns the
ranks of each group. `Team` is a rank's place in its group, `Denoiser` the distributed network, `windows` handles large scenes.
Invariants: samplers, guidance and the network are independent of ranks. Every rank of a group holds complete latents. Only the
call of the network (rows, tokens, or blocks) and the decoder (image rows) are cut. So sampler decisions agree on all ranks, and
none depends on a rank's own clock, memory or numbers. Extending: a new cut is a callable around the network. Degrees that keep
results are in `machine.sampling`, others in the evaluation.
"""

from dithc.parallel import choosing, windows
from dithc.parallel.choosing import least
from dithc.parallel.degrees import Degrees, Work, groups_of
from dithc.parallel.denoise import Denoiser
from dithc.parallel.team import Team

__all__ = ["Degrees", "Denoiser", "Team", "Work", "choosing", "groups_of", "least", "windows"]
