"""Planner: pure functions from a trace and memory levels to the placement at each slot.

`make_plan` returns a `Plan` with a `UnitDecision` per unit and a predicted timeline. It touches no tensor, so tests run
anywhere.

Invariants: a plan is the shortest prefix of `demotion_order` that fits. Equal traces and budgets give equal plans.

Extending: `demotion_order.py` holds the order of demotions, `timeline.py` the predictions.
"""

from dithc.engine.automem.planning.decision import MemoryLevel, UnitDecision
from dithc.engine.automem.planning.document import Plan
from dithc.engine.automem.planning.planner import make_plan
from dithc.engine.automem.planning.schedule import ScheduledPass, schedule_passes

__all__ = ["MemoryLevel", "Plan", "ScheduledPass", "UnitDecision", "make_plan", "schedule_passes"]
