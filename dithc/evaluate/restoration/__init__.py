"""Scores of restored images against the truth, and the baselines to compare with.

Contents: `pixel_scores` and `ensemble_scores` compare means and members with the truth inside a mask, `coarse_scores` adds
scores of a finer grid, and `spectral_distance` compares spectra. `pooled` joins the scores of several scenes. `Observed`
describes an incomplete image. `simple_fills`, `date_fill` and `train_regression` are baselines.

Invariants:
- Values are in physical units, and sums are float64.
- A score covers the pixels of its mask only. Hidden and observed pixels have separate scores.
- Scores of an ensemble of K members are unbiased in K: fair CRPS, quantiles by K + 1 ranks, spread with the error of the mean.
- All methods are evaluated with the same pixels.

Extending: a new fill is an entry of `simple_fills`. A new score is a key of a dict; `pooled` weights it by pixels.
"""

from dithc.evaluate.restoration.baselines import Observed, date_fill, simple_fills
from dithc.evaluate.restoration.regression import Examples, train_regression
from dithc.evaluate.restoration.scores import coarse_scores, ensemble_scores, pixel_scores, pooled, spectral_distance

__all__ = [
    "Examples",
    "Observed",
    "coarse_scores",
    "date_fill",
    "ensemble_scores",
    "pixel_scores",
    "pooled",
    "simple_fills",
    "spectral_distance",
    "train_regression",
]
