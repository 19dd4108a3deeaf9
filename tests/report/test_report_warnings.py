"""Errors and warnings of the report."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dithc.config import load
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.report import write_report
from dithc.report.collect.evaluations import _label
from dithc.report.collect.experiment import _warnings
from tests.report.conftest import configuration


def test_missing_manifest_is_rejected_and_preserves_the_old_report(small: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")
    with pytest.raises(UserError, match=r"gone/manifest\.json is missing(?s:.*)fix"):
        write_report(small.experiment, [*small.paths, tmp_path / "gone" / "manifest.json"], out=out)
    assert out.read_text() == "old"


def test_changes_of_a_run_are_listed(tree_class: Any, tmp_path: Path) -> None:
    plain = tree_class(tmp_path / "plain")
    assert {run.name: run.changes for run in plain.records().runs}["pretrain"] == {}
    content = tree_class.configuration()
    content["runs"]["pretrain"] |= {"objective": {"timestep_sampling": "logit-normal"}, "betas": [0.9, 0.95]}
    content["runs"]["finetune-gaofen2"] |= {"lr_schedule": "trapezoid", "optimizer": {"kind": "muon", "momentum": 0.9}}
    changes = {run.name: run.changes for run in tree_class(tmp_path / "other", content).records().runs}
    assert changes["pretrain"] == {"timestep_sampling": "logit-normal", "betas": [0.9, 0.95]}
    assert changes["finetune-gaofen2"] == {"lr_schedule": "trapezoid", "optimizer": "muon", "momentum": 0.9}


def test_unreadable_manifest_is_rejected(small: Any) -> None:
    small.paths[0].write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        small.records()


def test_unreadable_image_is_rejected(small: Any, tmp_path: Path) -> None:
    (small.folder("codecs", "small") / "grid.png").write_bytes(b"\x89PNG cut")
    with pytest.raises(UserError, match=r"grid\.png cannot be read"):
        write_report(small.experiment, small.paths, out=tmp_path / "report.html")


def test_results_of_different_settings_are_rejected(small: Any) -> None:
    content = small.configuration()
    content["runs"]["pretrain"]["lr"] = 3e-4
    small.experiment = type(small)(small.root, content).experiment
    with pytest.raises(UserError, match=r"made with lr = 0\.0001, the experiment has 0\.0003"):
        small.records()


def test_settings_that_only_change_speed_are_not_compared(small: Any) -> None:
    content = small.configuration()
    content["runs"]["pretrain"] |= {"micro_batch_size": 8, "log_every": 1}
    small.experiment = type(small)(small.root, content).experiment
    assert small.records().runs[0].step == 400


def test_result_of_a_different_experiment_is_rejected(small: Any) -> None:
    small.change(small.paths[0], name="elsewhere")
    with pytest.raises(UserError, match="'elsewhere' is not in experiment 'fake'"):
        small.records()


def test_replaced_input_is_rejected(small: Any) -> None:
    tiles = small.folder("tiles", "sentinel2") / "manifest.json"
    small.change(tiles, files=[{"path": "shard-00000.npy", "sha256": "0" * 64, "bytes": 1}])
    with pytest.raises(UserError, match=r"the input of latents sentinel2"):
        small.records()


@pytest.mark.slow
def test_mixed_code_versions_are_a_warning_on_the_page(small: Any, tmp_path: Path) -> None:
    small.change(small.paths[0], code={"version": "0.1.0", "source": "feedfeedfeed"})
    write_report(small.experiment, small.paths, out=tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "come from 2 different versions of the code" in text
    assert "feedfeedfeed: synthesize sentinel2" in text


def test_incomplete_run_is_a_warning(small: Any) -> None:
    small.paths.pop()
    assert any("pretrain is at step 200 of 400" in text for text in small.records().warnings)


@pytest.mark.parametrize(("clipped", "text"), [(49, "clips 49%"), (2, "")])
def test_much_clipping_in_a_restoration_is_a_warning(clipped: int, text: str) -> None:
    result = SimpleNamespace(summary={"clipped": clipped, "observed": 100})
    results: Any = SimpleNamespace(code={}, last=lambda *_: result)
    warnings = _warnings(cast("Any", SimpleNamespace(runs={}, restorations={"gaps": None})), results, {})
    assert bool(text) == bool(warnings)
    assert text in "".join(warnings)


def test_time_of_stopped_jobs_is_counted(small: Any) -> None:
    last = small.paths[-1]
    numbers = Manifest.read(last).summary
    assert small.records().runs[0].seconds == 320.0
    small.change(last, summary={**numbers, "training_seconds": 500.0})
    assert small.records().runs[0].seconds == 500.0


def test_pixel_codec_and_missing_metrics_are_accepted(small: Any) -> None:
    numbers = Manifest.read(small.paths[-1]).summary
    small.change(small.paths[-1], summary={**numbers, "metrics": "nowhere/metrics.jsonl"})
    records = small.records()
    assert records.runs[0].curve is None
    assert replace(records.dataset("gaofen2").codec).kind == "pixel"


def test_evaluation_labels_contain_the_run_if_a_dataset_has_several() -> None:
    content = configuration()
    content["runs"]["again"] = content["runs"]["finetune-sentinel2"] | {"seed": 1}
    content["evaluations"]["again"] = content["evaluations"]["sentinel2-final"] | {"run": "again"}
    experiment = load(content)
    labels = {name: _label(experiment, name) for name in experiment.evaluations}
    assert labels["again"] == "after fine-tuning, again"
    assert labels["sentinel2-final"] == "after fine-tuning, finetune-sentinel2"
    assert labels["sentinel2-start"] == "before fine-tuning"
    assert labels["gaofen2-final"] == "after fine-tuning"
