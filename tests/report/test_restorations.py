"""Restorations in the report: calibration from rank histograms, and tables of methods."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dithc.report.assessment import assess_runs
from dithc.report.figures.calibration import coverage_curve
from dithc.report.html.provenance import data_pairs
from dithc.report.html.restorations import restoration_tables
from dithc.report.records import RestorationRecord

FIELDS: dict[str, Any] = {
    "name": "r",
    "dataset": "sentinel2",
    "prior": "finetune-sentinel2",
    "settings": {},
    "members": 16,
    "scenes": 1,
    "coarse": {},
    "missing": [],
    "folders": [Path()],
}


def test_coverage_of_calibrated_members_is_nominal():
    nominal, observed = coverage_curve([1 / 17] * 17)
    assert nominal[0] == pytest.approx(15 / 17)
    assert observed == pytest.approx(nominal)
    assert min(nominal) == pytest.approx(1 / 17)


def test_coverage_of_narrow_members_is_below_nominal():
    """Members with half of the deviation of the truth; the normal distribution gives their coverage."""
    generator = np.random.default_rng(0)
    members, truth = 0.5 * generator.standard_normal((40_000, 16)), generator.standard_normal(40_000)
    histogram = np.bincount((members < truth[:, None]).sum(axis=1), minlength=17) / len(truth)
    nominal, observed = coverage_curve(histogram.tolist())
    ends = [norm.ppf((1 + share) / 2) / 2 for share in nominal]
    expected = [2 * norm.cdf(end) - 1 for end in ends]
    assert observed == pytest.approx(expected, abs=0.05), "order statistics are not exact quantiles"


def test_table_has_a_row_for_each_method_and_ensemble_scores_of_the_restoration_only():
    errors = {"pixels": 8, "rmse": 0.02, "mae": 0.01, "psnr_db": 34.0, "ssim": 0.9, "sam_degrees": None}
    ensemble = {"crps": 0.007, "coverage": 0.87, "calibrated_coverage": 0.88, "spread_over_error": 1.02}
    scores = {
        "gaps": {"restored": errors, "ensemble": ensemble, "nearest": errors | {"rmse": 0.03}, "empty": {"pixels": 0}}
    }
    records = type("Records", (), {"restorations": [RestorationRecord(scores=scores, **FIELDS)]})
    tables = restoration_tables(records)["r"]
    errors_of, ensemble_of = ([[cell.text for cell in row] for row in one.rows] for one in tables)
    assert [row[:3] for row in errors_of] == [["gaps", "restored", "0.02"], ["gaps", "nearest", "0.03"]]
    assert [row[2:] for row in ensemble_of] == [["0.007", "0.87", "0.88", "1.02"]]
    assert len(errors_of[0]) == 6, "the spectral angle has no value"


@pytest.mark.parametrize(
    ("nearest", "rating", "short"), [(0.03, "good", "better than all"), (0.016, "poor", "no better than")]
)
def test_a_prior_without_samples_is_assessed_by_its_restorations(tree: Any, nearest: float, rating: str, short: str):
    errors = {"restored": 0.02, "member": 0.001, "regression": 0.001, "nearest neighbor": nearest, "band mean": 0.05}
    gaps = {method: {"rmse": rmse} for method, rmse in errors.items()}
    scores = {"observed": {"restored": {"rmse": 0.0}}, "gaps": gaps}
    records = replace(tree.records(config=Path("config.yaml")), evaluations=[])
    found = {}
    for name, one in {"scored": scores, "unscored": {}}.items():
        other = replace(records, restorations=[RestorationRecord(scores=one, **FIELDS)])
        found[name] = next(one for one in assess_runs(other) if one.run == "finetune-sentinel2")
    quality, steps = found["scored"].quality, " ".join(step.text for step in found["scored"].steps)
    assert (quality.rating, quality.short[: len(short)]) == (rating, short)
    assert f"gaps: {0.02 / nearest:.2f} × nearest neighbor" in quality.text
    assert ("Train longer, because restored pixels are no better than nearest neighbor" in steps) == (rating == "poor")
    assert "score samples" not in steps
    assert found["unscored"].quality.short == "no score"
    assert any("`hide`" in step.text for step in found["unscored"].steps)


def test_scenes_that_are_only_restored_have_no_tiles_in_the_report(tree: Any):
    records = tree.records()
    restored = replace(records.dataset("sentinel2"), is_tiled=False)
    assert [name for name, _ in data_pairs(records, restored)] == ["source", "scenes", "scenes rejected"]
