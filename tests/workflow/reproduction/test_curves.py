"""Figure 7: deviations of platforms and noise of seeds, for curves with known distances."""

import math

import pytest

from dithc.workflow.reproduction.curves import compare_platforms, deviation, read_curves
from dithc.workflow.reproduction.jobs import CellJob

STEPS = 40


def cell(platform: str, seed: int, losses: list[float], status: str = "ok") -> tuple[CellJob, dict, str]:
    job = CellJob(target="fig7", name=f"{platform}-{seed}", words=("bench",), row=platform, columns=(f"seed {seed}",),
              seconds=1.0, metadata={"full": False})  # fmt: skip
    record = {"platform": platform, "model": {"preset": "DiT-S/2"}, "batch": 2, "seed": seed, "losses": losses}
    curve = record | ({"status": "ok"} if status == "ok" else {"status": status, "reason": "no GPU", "losses": []})
    return job, {"data": "generated", "curves": [curve]}, f"cells/{job.name}.json"


def falling_losses(scale: float) -> list[float]:
    return [scale * math.exp(-0.05 * step) for step in range(STEPS)]


def compare_cells(*cells: tuple[CellJob, dict, str]) -> dict:
    found = compare_platforms({job.name: (job, result, file) for job, result, file in cells})
    assert {cell.row for cell in found} <= {"S/2, batch 2"}
    return {cell.column: cell for cell in found}


def test_deviation_and_seed_noise_equal_known_values():
    found = compare_cells(
        cell("reference", 0, falling_losses(1.0)),
        cell("reference", 1, falling_losses(1.1)),
        cell("c-bf16", 0, falling_losses(1.02)),
        cell("c-bf16", 1, falling_losses(1.1)),
    )
    assert found["seeds of the reference"].value == pytest.approx(100 * 0.1 / 1.1)
    assert found["c-bf16"].value == pytest.approx(2.0)


def test_noise_requires_two_seeds_and_deviation_requires_a_reference():
    assert set(compare_cells(cell("reference", 0, falling_losses(1.0)), cell("c-bf16", 0, falling_losses(1.0)))) == {
        "c-bf16"
    }
    assert not compare_cells(cell("c-bf16", 0, falling_losses(1.0)), cell("c-bf16", 1, falling_losses(1.0)))
    assert compare_platforms({}) == []


@pytest.mark.parametrize("step", [0, 30, STEPS - 1])
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_platform_with_nonfinite_loss_is_skipped_with_the_step(step, loss):
    broken = falling_losses(1.0)
    broken[step] = loss
    cells = [
        cell("reference", 0, falling_losses(1.0)),
        cell("reference", 1, falling_losses(1.1)),
        cell("c-bf16", 0, broken),
    ]
    far = compare_cells(*cells)["c-bf16"]
    assert (far.status, far.value) == ("skipped", None)
    assert far.reason == f"the loss of step {step + 1} of seed 0 is not finite"
    (series,) = read_curves(*cells[-1]).series
    assert series.y == tuple(value if math.isfinite(value) else None for value in broken)
    (first,) = read_curves(*cells[-1]).cells
    assert first.value == (broken[0] if step else None)


def test_reference_with_nonfinite_loss_is_not_compared():
    broken = [*falling_losses(1.0)[:-1], math.nan]
    assert not compare_cells(
        cell("reference", 0, broken), cell("reference", 1, falling_losses(1.1)), cell("numba", 0, falling_losses(1.0))
    )


def test_smoothing_preserves_a_line_and_deviation_equals_known_values():
    job, result, file = cell("reference", 0, [float(step) for step in range(1, STEPS + 1)])
    (series,) = read_curves(job, result, file).series
    assert series.smoothed[5:-5] == series.y[5:-5]
    assert deviation([1.0, 3.0], [2.0, 2.0]) == 0.5
    assert deviation([], []) == 0.0


def test_unavailable_platform_is_skipped_with_the_reason():
    job, result, file = cell("cuda", 0, [], status="skipped")
    (one,) = read_curves(job, result, file).cells
    assert (one.status, one.reason, one.value) == ("skipped", "no GPU", None)
    assert not compare_cells((job, result, file))
