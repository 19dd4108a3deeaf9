"""What was measured of the engine, and what the paper prints: JSON and YAML of benches, and the tables they become.

What: one module a bench reads what it wrote and gives the rows of its tables; `published` reads the paper's numbers.
Why: the page and the figures show benches without knowing how these write their results.
Invariants: a file of another kind is an error that names what was expected; nothing is computed but ratios and units;
what was not measured gives no rows.
How to change it: a new bench is a module here, a part in `page/engine_parts.py` and, where it is drawn, a file in `figures/`.
"""

from dithc.report.engine import (
    automem_table,
    published,
    sampling_rows,
    scaling_curves,
    step_table,
    stepwise_stages,
    strategy_table,
    timelines,
)

__all__ = [
    "automem_table",
    "published",
    "sampling_rows",
    "scaling_curves",
    "step_table",
    "stepwise_stages",
    "strategy_table",
    "timelines",
]
