"""Selection of degrees by the predicted seconds of a complete job.

Contents: `Rates` (with `Link`s within and between nodes) are `measured` on the ranks or `described` for a machine.
`Costs` are the formulas, `search` orders all valid degrees and explains rejected ones, `least` returns the best.
Invariants: everything except `measured` is pure. Ranks agree on measured rates, and the first rank sends the choice. A
ring, which rounds differently, is chosen only if it saves more than 10%.
Extending: a partition is a field of `Degrees`, with seconds in `cost_model.py` and limits in `degrees.py`. A rate is a field
of `Rates`, measured in `calibration.py` and described by `dithc simulate --sample`.
"""

from dithc.sample.parallel.planner.calibration import measured
from dithc.sample.parallel.planner.cost_model import Costs, Link, Rates, described
from dithc.sample.parallel.planner.search import Chosen, choose, least

__all__ = ["Chosen", "Costs", "Link", "Rates", "choose", "described", "least", "measured"]
