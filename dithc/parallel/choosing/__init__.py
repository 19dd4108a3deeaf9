"""Selection of degrees by the predicted seconds of a complete job.

Contents: `Rates` (with `Link`s within and between nodes) are `measured` on the ranks or `described` for a machine.
`Costs` are the formulas, `choose` orders all valid degrees and explains rejected ones, `least` returns the best.
Invariants: everything except `measured` is pure. Ranks agree on measured rates, and the first rank sends the choice. A
ring, which rounds differently, is chosen only if it saves more than 10%.
Extending: a partition is a field of `Degrees`, with seconds in `costs.py` and limits in `degrees.py`. A rate is a field
of `Rates`, measured in `measure.py` and described by `dithc simulate --sample`.
"""

from dithc.parallel.choosing.choose import Chosen, choose, least
from dithc.parallel.choosing.costs import Costs, Link, Rates, described
from dithc.parallel.choosing.measure import measured

__all__ = ["Chosen", "Costs", "Link", "Rates", "choose", "described", "least", "measured"]
