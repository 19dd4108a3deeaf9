"""Wald's protocol on a cut with native grids: the measured 20 m pixels are the truth of a restoration from 40 m."""

from pathlib import Path

import h5py
import numpy as np
import torch

from dithc.diffusion.restoration import (
    BandGroups,
    Observation,
    RadialCovariance,
    Resampling,
    Selection,
    conditional_mean,
)
from dithc.evaluate.restoration import Observed, coarse_scores, pixel_scores, simple_fills

MTF, NOISE, SIDE = 0.3, 0.02, 32


def test_conditional_mean_of_measured_bands_beats_bicubic_and_is_consistent(shared_data: Path) -> None:
    with h5py.File(shared_data / "s2_l1c_native_grids/S2A_MSIL1C_20170527_T33UUB.mat") as file:
        fine, truth = (
            file[name][()].astype(np.float64) / 1e4 for name in ("im10", "im20")
        )  # (4, 600, 600), (6, 300, 300)
    x = np.concatenate([fine.reshape(4, 300, 2, 300, 2).mean(axis=(2, 4)), truth])
    mean, deviation = x.mean(axis=(1, 2), keepdims=True), x.std(axis=(1, 2), keepdims=True)
    scaled = (x - mean) / deviation
    corners = [(row, column) for row in range(0, 268, 24) for column in range(0, 168, 24)]
    covariance = RadialCovariance.of(
        np.stack([scaled[:, row : row + 32, column : column + 32] for row, column in corners])
    )
    part = scaled[:, 100 : 100 + SIDE, 220 : 220 + SIDE]
    is_fine = np.zeros(part.shape, bool)
    is_fine[:4] = True
    groups = {
        tuple(range(4)): Selection(torch.from_numpy(is_fine[:4])),
        tuple(range(4, 10)): Resampling((6, SIDE, SIDE), 2, MTF),
    }
    operator = BandGroups(part.shape, groups)
    values = operator.apply(torch.from_numpy(part)[None])[0]
    observation = Observation(operator, values, torch.full_like(values, NOISE))
    seen = Observed(
        x=part, pixels=is_fine, gaps=np.zeros((SIDE, SIDE), bool), coarse=dict.fromkeys(range(4, 10), 2), mtf=MTF
    )
    images = simple_fills(seen) | {"normal": conditional_mean(observation, covariance, iterations=500)[0].numpy()}
    del images["band mean"]  # undefined for coarse bands
    errors = {
        name: pixel_scores((image * deviation + mean)[4:], (part * deviation + mean)[4:])
        for name, image in images.items()
    }
    assert errors["normal"]["rmse"] < 0.75 * errors["bicubic"]["rmse"] < 0.75 * errors["bilinear"]["rmse"]
    assert errors["normal"]["sam_degrees"] < errors["bicubic"]["sam_degrees"]
    everywhere = slice(0, SIDE), slice(0, SIDE)
    consistency = [
        coarse_scores(seen, 2, images[name], deviation=np.full(6, NOISE), inner=everywhere)["consistency"]
        for name in ("normal", "bicubic")
    ]
    assert consistency[0] < 1 < consistency[1]
