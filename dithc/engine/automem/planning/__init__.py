"""Planner: pure functions from a trace and memory levels to the placement at each turn.

`plan` returns a `Plan` with a `Decision` per unit and a predicted timeline. It touches no tensor, so tests run
anywhere.

Invariants: a plan is the first rung of `demotion_order` that fits. Equal traces and budgets give equal plans.

Extending: `demotion_order.py` holds the order of demotions, `timeline.py` the predictions.
"""

from dithc.engine.automem.planning.decision import Decision, Level
from dithc.engine.automem.planning.document import Plan
from dithc.engine.automem.planning.planner import plan
from dithc.engine.automem.planning.schedule import Turn, turns_of

__all__ = ["Decision", "Level", "Plan", "Turn", "plan", "turns_of"]
