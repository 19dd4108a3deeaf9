"""The assessment follows from the numbers, and its commands are valid shell lines."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.report.assessment import assess_runs
from dithc.report.assessment.training_check import held_out
from dithc.report.records import Curve, ReportRecords


@pytest.fixture(scope="module")
def records(tree: Any) -> ReportRecords:
    return tree.records(config=Path("results/fa ke/config.json"))


def with_losses(records: ReportRecords, run: str, values: list[float]) -> ReportRecords:
    """Return the records with other losses on held-out tiles, one every 10 steps."""
    steps = np.arange(1.0, 10 * len(values) + 1)
    losses = np.full(len(steps), np.nan)
    losses[9::10] = values
    curve = Curve(run=run, steps=steps, loss=np.ones_like(steps), images_per_second=steps, val_loss=losses, lr=steps)
    return replace(records, runs=[replace(one, curve=curve) if one.name == run else one for one in records.runs])


def with_score(records: ReportRecords, name: str, **numbers: Any) -> ReportRecords:
    items = [
        replace(one, score=replace(one.score, **numbers)) if one.name == name and one.score else one
        for one in records.evaluations
    ]
    return replace(records, evaluations=items)


def assessment(records: ReportRecords, run: str) -> Any:
    return next(one for one in assess_runs(records) if one.run == run)


@pytest.mark.parametrize(
    ("values", "rises", "falls"),
    [([1.0, 0.5, 0.4, 0.3], False, True), ([1.0, 0.5, 0.5, 0.5], False, False), ([1.0, 0.4, 0.45, 0.5], True, False)],
)
def test_trend_of_the_held_out_loss(records: ReportRecords, values: list[float], rises: bool, falls: bool) -> None:
    other = with_losses(records, "finetune-sentinel2", values)
    trend = held_out(next(run for run in other.runs if run.name == "finetune-sentinel2"))
    assert trend is not None
    assert (trend.is_rising, trend.is_falling) == (rises, falls)
    found = assessment(other, "finetune-sentinel2")
    assert (found.trained.short == "yes, then it overfitted") == rises
    assert any("Overfitting" in text for text in found.concerns) == rises
    assert any("steps: 400" in step.command for step in found.steps) == falls


def test_trend_requires_two_measurements(records: ReportRecords) -> None:
    for values in ([], [0.5]):
        other = with_losses(records, "finetune-sentinel2", values)
        assert "no held-out loss" in assessment(other, "finetune-sentinel2").trained.text


def test_run_without_progress_is_rated_poor(records: ReportRecords) -> None:
    runs = [replace(run, mean_loss_first_10=1.0, mean_loss_last_100=0.999) for run in records.runs]
    better = assessment(replace(records, runs=runs), "finetune-gaofen2")
    assert (better.trained.short, better.trained.rating) == ("yes", "good")
    assert "KID fell clearly" in better.trained.text
    items = [
        replace(item, score=item.score and replace(item.score, kid_interval=[0.1, 0.2])) for item in records.evaluations
    ]
    found = assessment(replace(records, runs=runs, evaluations=items), "finetune-gaofen2")
    assert (found.trained.short, found.trained.rating) == ("no", "poor")


@pytest.mark.parametrize(
    ("fid", "description"), [(12.0, "as good as"), (30.0, "close to"), (100.0, "clearly short of"), (200.0, "far from")]
)
def test_score_is_compared_with_floor_and_codec(records: ReportRecords, fid: float, description: str) -> None:
    other = with_score(records, "sentinel2-final", fid=fid)
    final = next(item for item in other.evaluations if item.name == "sentinel2-final")
    assert assessment(other, "finetune-sentinel2").quality.short.startswith(description)
    assert final.score is not None
    codec = replace(final, name="c", checkpoint="codec", label="the codec alone", score=replace(final.score, fid=190.0))
    with_codec = replace(other, evaluations=[*other.evaluations, codec])
    assert assessment(with_codec, "finetune-sentinel2").quality.short.startswith("as good as"), (
        "the codec limits the samples"
    )
    assert any("codec loses detail" in text for text in assessment(with_codec, "finetune-sentinel2").concerns)
    other_codec = replace(codec, score=replace(final.score, fid=190.0, sha256="other"))
    changed = replace(other, evaluations=[*other.evaluations, other_codec])
    assert assessment(changed, "finetune-sentinel2").quality.short.startswith(description), (
        "scores of other features are not compared"
    )


def test_commands_are_shell_lines_with_the_configuration(records: ReportRecords) -> None:
    for judgement in assess_runs(records):
        assert judgement.steps
        for step in judgement.steps:
            arguments = shlex.split(step.command)
            assert arguments[:1] == ["dithc"]
            if arguments[1] == "run":
                assert "results/fa ke/config.json" in arguments
    assert not any(
        step.command.startswith("dithc run") for one in assess_runs(replace(records, config=None)) for step in one.steps
    )


def test_model_of_custom_size_has_no_preset_name(records: ReportRecords) -> None:
    run = records.runs[0]
    assert run.model == "DiT-S/2"
    assert (
        replace(run, changes={"hidden_size": 160, "depth": 6}).model == "DiT, custom size, width 160, depth 6, patch 2"
    )


def test_codec_evaluation_uses_the_real_tiles_of_the_score(records: ReportRecords) -> None:
    items = [
        replace(one, settings={**one.settings, "real_split": "test", "num_real_images": 50})
        for one in records.evaluations
    ]
    (step,) = [
        one
        for one in assessment(replace(records, evaluations=items), "finetune-sentinel2").steps
        if "limit of the codec" in one.text
    ]
    assert "real_split: test, num_real_images: 50" in step.command


def test_kid_is_recommended_only_if_available(records: ReportRecords) -> None:
    few = {"n_generated": 50, "n_real": 50}
    for kid, is_advised in ((0.1, True), (None, False)):
        concerns = assessment(with_score(records, "sentinel2-final", kid=kid, **few), "finetune-sentinel2").concerns
        (concern,) = [text for text in concerns if text.startswith("Few images")]
        assert ("use KID" in concern) == is_advised
