"""One image by one rank and by several, side by side: seconds of a step and of an image, speed-ups, and what differs.

What: `bench_sampling` starts ranks and one process with the cores of all of them, and has `CONTENDERS` take turns on them for
each `Cell` of `SamplingSettings`, those with a cache for images alone; then an image is decoded in several ways (`decoders`,
`decoding`). `serve` is what these processes do.
Why: a speed-up of a cut says something only beside one rank in the same minute, beside one process with all the cores, which is
what a user would start otherwise, and beside what the machine gives N processes that exchange nothing.
Invariants: whose turn it is not sleeps at a socket, and takes no core from who is timed; the clock of a turn is that of its
slowest rank, from a barrier on; memory is looked at in ranks that are started for it; every output, on every rank, is compared
with that of one rank in numbers, never by eye; weights are random everywhere, heads and gates too, for an untrained network
gives 0 whatever is wrong.
How to change it: another way to sample is a line of `contenders.CONTENDERS`, and where it is no cut of ours a class like
`ways.Ours`; another decoder is a line of `decoders.DECODERS`. diffusers enters in `theirs.py` alone.
"""

from dithc.bench.sampling.contenders import CONTENDERS
from dithc.bench.sampling.measure import SamplingSettings, bench_sampling
from dithc.bench.sampling.processes import serve
from dithc.bench.sampling.ways import Cell

__all__ = ["CONTENDERS", "Cell", "SamplingSettings", "bench_sampling", "serve"]
