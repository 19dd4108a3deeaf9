"""Weight updates by AdamW, optionally with Muon, weight averages, and the outer optimizer of local updates.

Invariants: master weights, moments and averages are fp32; sharding does not change results.
Extending: another optimizer is a file like `muon.py`, called from `optimizer.py`.
"""

from dithc.train.optimizer.ema import Ema, initial_weight_fraction
from dithc.train.optimizer.muon import MuonConfig
from dithc.train.optimizer.optimizer import Optimizer
from dithc.train.optimizer.outer_state import OuterState

__all__ = ["Ema", "MuonConfig", "Optimizer", "OuterState", "initial_weight_fraction"]
