"""Plans of training runs: short measurements on this node, the ranked table, its text and its record.

Purpose: answer before the queue whether a run fits, how long it takes, and which settings of `machine` to choose.
Contents: `measure` rehearses arrangements on this node (`rehearsals`) and times the best plans; `describe` uses a machine
description and one step time; `record_of` and `format_plan` are JSON and text. `dithc.engine.cost.plans` predicts.
Invariants: rehearsals train on random latents and leave no files. Equal facts give equal tables.
Extending: a new arrangement is measured in `Node.launches` and predicted in `plans.candidates`.
"""

from dithc.bench.plan.plan_text import TIME_OVER, format_plan
from dithc.bench.plan.planning import PlanSettings, describe, measure, record_of

__all__ = ["TIME_OVER", "PlanSettings", "describe", "format_plan", "measure", "record_of"]
