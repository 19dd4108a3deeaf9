"""The chooser of degrees: predicted seconds of every way to cut a sampling, from rates, for the whole job.

What: `Rates` (with a `Link` inside a node and one between nodes) say how fast ranks compute, copy, meet and speak; `measured`
finds them on the ranks that are here, `described` in the description of a machine; `Costs` are the formulas, `choose` orders all
degrees that go together and says why others do not, `least` gives the best.
Why: the best cut moves with the links, the tokens and the number of images, and must hold for all shards, not for a step.
Invariants: everything but `measured` is pure, so the same numbers give the same degrees; measured rates are agreed before they
are used, and what is chosen is sent by the first rank. A ring, which rounds otherwise than one rank, is taken only where it
saves more than a tenth.
How to change it: another way to cut is a field of `Degrees`, its seconds in `costs.py`, its faults in `degrees.py`; another rate
is a field of `Rates`, measured in `measure.py` (of computing, in `blocks.py`) and described by `dithc simulate --sample`.
"""

from dithc.parallel.choosing.choose import Chosen, choose, least
from dithc.parallel.choosing.costs import Costs, Link, Rates, described
from dithc.parallel.choosing.measure import measured

__all__ = ["Chosen", "Costs", "Link", "Rates", "choose", "described", "least", "measured"]
