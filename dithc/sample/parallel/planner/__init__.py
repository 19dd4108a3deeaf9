"""Selection of degrees by the predicted seconds of a complete job.

Contents: `MachineRates` (with `LinkModel`s within and between nodes) are `measure_rates` on the ranks or `rates_from_description`
for a machine. `CostModel` are the formulas, `search` orders all valid degrees and explains rejected ones, `best_degrees` returns
the best. Invariants: everything except `measure_rates` is pure. Ranks agree on measured rates, and the first rank sends the
choice. A ring, which rounds differently, is chosen only if it saves more than 10%.
Extending: a partition is a field of `ParallelDegrees`, with seconds in `cost_model.py` and limits in `degrees.py`. A rate is a
field of `MachineRates`, measured in `calibration.py` and described by `dithc simulate --sampling`.
"""

from dithc.sample.parallel.planner.calibration import measure_rates
from dithc.sample.parallel.planner.cost_model import CostModel, LinkModel, MachineRates, rates_from_description
from dithc.sample.parallel.planner.search import PlanResult, best_degrees, rank_degrees

__all__ = [
    "CostModel",
    "LinkModel",
    "MachineRates",
    "PlanResult",
    "best_degrees",
    "measure_rates",
    "rank_degrees",
    "rates_from_description",
]
