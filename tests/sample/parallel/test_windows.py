"""Tests of windows over scenes: one window equals the network, ranks change no bit, and seams are invisible."""

import pytest
import torch

from dithc.core.image_quality import seam_ratio
from dithc.diffusion import Schedule, sample
from dithc.sample.parallel.windows import WindowedDenoiser, WindowGrid, window_starts, window_weights
from tests.ranks import needs_launcher
from tests.sample.parallel.test_parallel_denoiser import MANY, NETWORK, needs_kernels, program_output

OF_RANKS = (
    NETWORK
    + """
from dithc.sample.parallel.windows import WindowGrid, WindowedDenoiser, decode_by_rows
n = int(sys.argv[2])
SCENE = torch.randn(2, 4, 37, 33, generator=torch.Generator().manual_seed(2))

class Codec:
    downsampling_factor = 2
    def __init__(self, reach):
        self.reach = reach
        torch.manual_seed(5)
        self.conv = torch.nn.Conv2d(4, 12, 3, padding=1)
    def decode(self, z):
        return torch.nn.functional.pixel_shuffle(self.conv(z), 2)

with init_distributed(n) as group:
    local = RankSet(group.rank, n, group.split([list(range(n))]))
    model, found = network(KINDS[0]), {}
    for bf16 in (False, True):
        for overlap, shift in ((0.25, False), (0.0, True)):
            grid = WindowGrid(size=(37, 33), window=(16, 14), overlap=overlap, shift=shift, seed=3)
            t, y = torch.full((2,), 250.0), torch.tensor([1, 7])
            single = WindowedDenoiser(ParallelDenoiser(model, bf16=bf16), grid, batch=32)(SCENE, t, y)
            shared = WindowedDenoiser(ParallelDenoiser(model, bf16=bf16, rows=local), grid, batch=3 * n)(SCENE, t, y)
            found[f"bf16 {bf16}, overlap {overlap}"] = torch.equal(shared, single)
    with torch.no_grad():
        for reach in (1, None):
            parts = list(decode_by_rows(Codec(reach), SCENE[0], tile=(9, 8), ranks=local))
            whole = torch.cat(list(decode_by_rows(Codec(reach), SCENE[0], tile=(9, 8))), dim=1)
            found[f"decoded, {reach}"] = torch.equal(torch.cat(parts, dim=1), whole) if group.rank == 0 else not parts
    gathered = group.gather_objects(found)
    if group.rank == 0:
        print("output " + json.dumps(gathered))
"""
)


@pytest.mark.mpi
@needs_launcher
@needs_kernels
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=MANY)])
def test_parallel_windows_equal_the_scene_of_a_single_rank(ranks, tmp_path) -> None:
    found = program_output(OF_RANKS, ranks, tmp_path)
    assert len(found) == ranks
    for one in found:
        assert all(one.values()), one


@pytest.mark.parametrize(
    ("length", "side", "stride", "offset", "expected"),
    [
        (32, 16, 8, 0, [0, 8, 16]),
        (37, 16, 12, 0, [0, 12, 21]),  # the last window is moved inward
        (16, 16, 4, 0, [0]),
        (32, 16, 16, 5, [0, 11, 16]),
        (17, 16, 16, 15, [0, 1]),
    ],
)
def test_window_starts_cover_the_scene_within_bounds(length, side, stride, offset, expected) -> None:
    assert window_starts(length, side, stride=stride, offset=offset) == expected


@pytest.mark.parametrize(("overlap", "shift"), [(0.25, False), (0.9, False), (0.0, True), (0.5, True)])
def test_window_weights_sum_to_one_at_every_position(overlap, shift) -> None:
    grid = WindowGrid(size=(45, 67), window=(16, 14), overlap=overlap, shift=shift)
    for t in (0.0, 1.0, 999.0):
        for begins, side, length in zip(grid.starts(t), grid.window, grid.size, strict=True):
            total = torch.zeros(length, dtype=torch.float64)
            for first, share in zip(begins, window_weights(begins, side, length), strict=True):
                total[first : first + side] += share.double()
            assert (total - 1).abs().max() < 1e-6
    assert len(grid.starts(0.0)[0]) * len(grid.starts(0.0)[1]) <= grid.num_windows + shift * (
        sum(map(len, grid.starts(0.0))) + 1
    )


def test_window_grid_depends_only_on_seed_and_timestep() -> None:
    grid = WindowGrid(size=(64, 64), window=(16, 16), shift=True, seed=4)
    assert grid.starts(3.0) == WindowGrid(size=(64, 64), window=(16, 16), shift=True, seed=4).starts(3.0)
    grids = {str(grid.starts(float(t))) for t in range(50)}
    assert len(grids) > 35
    assert grid.starts(3.5) != grid.starts(3.0)
    assert WindowGrid(size=(64, 64), window=(16, 16), shift=True, seed=5).starts(3.0) != grid.starts(3.0)
    assert WindowGrid(size=(64, 64), window=(16, 16), overlap=0.25, seed=5).starts(3.0) == ([0, 12, 24, 36, 48],) * 2


def field(side: int):
    """Return the exact noise prediction for a Gaussian field (covariance falls by e in 8 places), and the schedule."""
    places = torch.arange(side).double()
    variances, vectors = torch.linalg.eigh(torch.exp(-(places[:, None] - places).abs() / 8))
    both, vectors, schedule = (variances[:, None] * variances).float(), vectors.float(), Schedule.linear()

    def predict(x, t, y):
        alpha_bar = schedule.alpha_bar[t.long()].float()[:, None, None, None]
        filtered = vectors.T @ x @ vectors * both * alpha_bar.sqrt() / (both * alpha_bar + 1 - alpha_bar)
        return (x - alpha_bar.sqrt() * (vectors @ filtered @ vectors.T)) / (1 - alpha_bar).sqrt()

    return predict, schedule


@pytest.mark.parametrize(
    ("overlap", "shift", "low", "high"),
    [
        (0.25, False, 0.95, 1.05),
        (0.0, True, 0.95, 1.05),
        (0.0, False, 2.0, 5.0),  # control: independent windows
    ],
)
@pytest.mark.slow
def test_seam_ratio_of_windowed_sampling_is_within_bounds(overlap, shift, low, high) -> None:
    predict, schedule = field(16)
    windows = WindowedDenoiser(
        predict, WindowGrid(size=(96, 96), window=(16, 16), overlap=overlap, shift=shift), batch=64
    )
    y = torch.zeros(2, dtype=torch.long)
    x = sample(
        "ddim",
        denoise=lambda x, t: windows(x, t, y),
        schedule=schedule,
        steps=50,
        shape=(4, 96, 96),
        noise=[torch.Generator().manual_seed(index) for index in range(2)],
    )
    assert low < seam_ratio(x.numpy(), *windows.last, window=(16, 16)) < high
    assert 0.8 < float(x.std()) < 1.1
