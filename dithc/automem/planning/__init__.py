"""The planner: from the trace of a step and the memory there is, to what lives where at each turn; pure functions.

What: `plan` takes a trace and returns a `Plan`: a `Decision` for each unit, with the timeline that it is expected to give.
Why: who plans touches no tensor, so that a plan can be tested, drawn and compared on any machine.
Invariants: a plan is the first rung of `ladder` that fits; the same trace and the same budgets give the same plan.
How to change it: another order of what leaves fast memory is an order in `ladder.py`; what is predicted is in `timeline.py`.
"""

from dithc.automem.planning.decision import Decision, Level
from dithc.automem.planning.document import Plan
from dithc.automem.planning.planner import plan
from dithc.automem.planning.turns import Turn, turns_of

__all__ = ["Decision", "Level", "Plan", "Turn", "plan", "turns_of"]
