"""One image on several ranks: what of a sampling each rank makes, and how ranks meet while they make it.

What: `Degrees` say how many ranks share what, `least` chooses them for some `Work` (`choosing` is how: predicted seconds of all
that go together), `groups_of` are the ranks of each group; `Team` is what a rank is in its group, `Denoiser` a network as
samplers call it, by some of them; `windows` is the room of scenes larger than a network's own images.
Why: shards alone keep only so many ranks busy as there are shards, and one image never uses two; a cut must show in time alone,
never in the image.
Invariants: samplers, guidance and the network know nothing of ranks: they are called with whole latents, which every rank of a
group holds, and what is cut is the call of the network (rows of its batch, then tokens, or blocks that patches of tokens go
through) and of the decoder (rows of the image).
So every decision of a sampler falls alike on all ranks. Nothing is decided on one rank's own clock, memory or numbers.
How to change it: another way to cut is another callable around the network; degrees that change no result come from
`machine.sampling`, what changes one stands in the evaluation.
"""

from dithc.parallel import choosing, windows
from dithc.parallel.choosing import least
from dithc.parallel.degrees import Degrees, Work, groups_of
from dithc.parallel.denoise import Denoiser
from dithc.parallel.team import Team

__all__ = ["Degrees", "Denoiser", "Team", "Work", "choosing", "groups_of", "least", "windows"]
