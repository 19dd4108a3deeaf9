"""Smoothing, resumes and the numbers of the paper."""

from pathlib import Path

import numpy as np
import pytest

from dithc.core.integrity import dump_checksummed_line
from dithc.core.logging import UserError
from dithc.core.measurements import short
from dithc.report import draw_loss
from dithc.report.collect.curves import read_curve, read_resumes, smooth
from dithc.report.formatting import score, span


def test_smooth_keeps_the_first_value_and_averages_the_last() -> None:
    smoothed = smooth(np.arange(11, dtype=np.float64), window=5)
    assert smoothed[[0, 5, -1]].tolist() == [0, 5, 9]
    assert [len(smooth(np.ones(count))) for count in (0, 1, 2, 7)] == [0, 1, 2, 7]


def test_smooth_skips_nan_and_returns_nan_without_values() -> None:
    smoothed = smooth(np.array([1.0, np.nan, 3.0, np.nan, np.nan, np.nan, np.nan]), window=3)
    assert smoothed[1] == 2.0
    assert np.isnan(smoothed[5])


def test_resumes_are_starts_after_step_zero_and_torn_lines_are_skipped(tmp_path: Path) -> None:
    lines = [{"event": "started", "step": 0}, {"event": "checkpoint", "step": 50}, {"event": "started", "step": 50}]
    (tmp_path / "events.jsonl").write_text("".join(map(dump_checksummed_line, lines)) + '{"event": "sta')
    assert read_resumes(tmp_path) == [50]


def test_planned_segments_are_not_resumes(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0, "step_seconds": 0.5} for step in range(1, 11)]
    rows[4]["val_loss"] = 0.75
    (tmp_path / "metrics.jsonl").write_text("".join(map(dump_checksummed_line, rows)))
    events = [{"event": "started", "step": step} for step in (0, 5, 7)]
    (tmp_path / "events.jsonl").write_text("".join(map(dump_checksummed_line, events)))
    curve = read_curve("run", metrics=tmp_path, store=tmp_path, global_batch_size=8, segments=[5, 10])
    assert curve is not None
    assert (curve.segments, curve.resumes) == ([5], [7])
    assert curve.images_per_second[0] == 16
    assert curve.val_loss[4] == 0.75
    assert np.isnan(np.delete(curve.val_loss, 4)).all()


def test_loss_of_a_run_without_steps_cannot_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="no loss to draw"):
        draw_loss(tmp_path / "metrics.jsonl")


def test_formats_of_numbers() -> None:
    assert " ".join(map(short, (0.0, 0.123456, 28.5, 1234567.0, 3e-7, None))) == "0 0.1235 28.5 1.23e+06 3.00e-07 –"
    assert " ".join(map(score, (48.2619, 398.0, 0.0312, 12345.6, -0.001))) == "48.26 398.0 0.03120 12,346 -0.001000"
    assert [span(value) for value in (0, 0.5, 59, 61, 7325)] == ["0 s", "0.5 s", "59 s", "1 min 01 s", "2 h 02 min"]
