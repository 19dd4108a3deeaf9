"""Simulation of the training step on a machine with any number of nodes.

Purpose: estimate scaling before the nodes are available. A model that reproduces published scaling from published
inputs is credible for other inputs.
Contents: `simulation` returns curves for JSON from a machine description and a step time (`measured_step`), by the model of
`dithc.engine.cost`. `paper_scaling` reproduces the published scaling. `SimulationSettings` configures both.
Invariants: equal settings and seeds give equal curves.
Extending: other published numbers belong in `paper_scaling.py`; the model itself is in `dithc.engine.cost`.
"""

from dithc.bench.simulate.simulation import SimulationSettings, computing_of, format_curves, run_simulation

__all__ = ["SimulationSettings", "computing_of", "format_curves", "run_simulation"]
