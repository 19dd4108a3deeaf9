"""Scores of restored images against the truth, and the baselines to compare with.

Contents: `pixel_scores` and `ensemble_scores` compare means and members with the truth inside a mask, and `pooled` joins
the scores of several scenes. `sharpening` contains the scores of a finer grid (`opensr_scores`) and Wald's protocol
(`degrade`). `radial_power` and `log_spectral_distance` compare spectra. `baselines` contains simple fills and
interpolations, `train_regression` trains a U-Net, and `cloud_masks` draws hidden pixels from real cloud shapes.

Invariants:
- Values are in physical units, and sums are float64.
- A score covers the pixels of its mask only. Hidden and observed pixels have separate scores.
- Scores of an ensemble of K members are unbiased in K: fair CRPS, quantiles by K + 1 ranks, corrected spread.
- Hidden pixels depend on (seed, number) only, so that all methods are evaluated with the same gaps.

Extending: a new fill is a function `(x, valid) -> filled` and a line of `baselines.FILLS`. A new score is a key of a dict;
`pooled` weights it by pixels.
"""

from dithc.evaluate.pixels import log_spectral_distance, radial_power
from dithc.evaluate.restoration import baselines, sharpening
from dithc.evaluate.restoration.cloud_masks import cloud_masks
from dithc.evaluate.restoration.regression import train_regression
from dithc.evaluate.restoration.scores import central_interval, ensemble_scores, pixel_scores, pooled

__all__ = [
    "baselines",
    "central_interval",
    "cloud_masks",
    "ensemble_scores",
    "log_spectral_distance",
    "pixel_scores",
    "pooled",
    "radial_power",
    "sharpening",
    "train_regression",
]
