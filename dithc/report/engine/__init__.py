"""Content of the engine's figures, from the JSON of benchmarks. The tables are the summaries in these files.

Contents: `scaling_curves`, `stepwise_stages`, `sampling_rows` and `timelines`, one module per figure.

Invariants: a file of another type is an error. Only ratios and units are computed.

Extending: a figure of another benchmark is a module here, a part in `page/engine_parts.py` and a file in `figures/`.
"""

from dithc.report.engine import sampling_rows, scaling_curves, stepwise_stages, timelines

__all__ = ["sampling_rows", "scaling_curves", "stepwise_stages", "timelines"]
