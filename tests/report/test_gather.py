"""Errors and warnings of the report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dithc.config import load
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.report import write_report
from dithc.report.collect.evaluations import _label
from dithc.report.collect.experiment import collect_records
from dithc.report.collect.gather import gather_manifests
from dithc.report.records import ReportRecords
from tests.report.conftest import configuration


def facts_of(tree: Any) -> ReportRecords:
    """Return the facts of a tree."""
    return collect_records(tree.experiment, gather_manifests(tree.experiment, tree.paths))


@pytest.fixture
def small(plant: Any, tmp_path: Path) -> Any:
    """A dataset, its codec and a run."""
    tree = plant(tmp_path)
    tree.codec(tree.dataset("sentinel2"))
    tree.run("pretrain")
    return tree


def test_missing_manifest_is_an_error_and_leaves_the_old_report(small: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")
    with pytest.raises(UserError, match=r"gone/manifest\.json is missing(?s:.*)fix"):
        write_report(small.experiment, [*small.paths, tmp_path / "gone" / "manifest.json"], out=out)
    assert out.read_text() == "old"


def test_run_says_what_it_learns_otherwise(plant: Any, tmp_path: Path) -> None:
    plain = plant(tmp_path / "plain")
    assert {run.name: run.changes for run in facts_of(plain).runs}["pretrain"] == {}
    content = plant.configuration()
    content["runs"]["pretrain"] |= {
        "objective": {"prediction_type": "v", "loss_weighting": "min-snr"},
        "betas": [0.9, 0.95],
    }
    for name in ("sentinel2", "gaofen2"):
        content["runs"][f"finetune-{name}"] |= {"objective": {"prediction_type": "v"}, "lr_schedule": "cosine"}
    content["runs"]["finetune-gaofen2"] |= {"optimizer": {"kind": "muon", "momentum": 0.9}}
    changes = {run.name: run.changes for run in facts_of(plant(tmp_path / "other", content)).runs}
    assert changes["pretrain"] == {"prediction_type": "v", "loss_weighting": "min-snr", "betas": [0.9, 0.95]}
    muon = {"optimizer": "muon", "momentum": 0.9}
    assert changes["finetune-gaofen2"] == {"prediction_type": "v", "lr_schedule": "cosine", **muon}


def test_unreadable_manifest_is_an_error(small: Any) -> None:
    small.paths[0].write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        facts_of(small)


def test_unreadable_picture_is_an_error(small: Any, tmp_path: Path) -> None:
    (small.folder("codecs", "small") / "grid.png").write_bytes(b"\x89PNG cut")
    with pytest.raises(UserError, match=r"grid\.png cannot be read"):
        write_report(small.experiment, small.paths, out=tmp_path / "report.html")


@pytest.mark.parametrize(
    ("content", "said"), [("{", "cannot be read"), ("{}", "is not a result of"), ("[1]", "cannot be read")]
)
def test_unreadable_bench_is_an_error(small: Any, tmp_path: Path, content: str, said: str) -> None:
    bench = tmp_path / "bench.json"
    bench.write_text(content)
    with pytest.raises(UserError, match=rf"bench\.json {said}"):
        write_report(small.experiment, small.paths, out=tmp_path / "report.html", benches={"step": bench})


def test_results_of_other_settings_are_an_error(small: Any) -> None:
    content = small.configuration()
    content["runs"]["pretrain"]["lr"] = 3e-4
    small.experiment = type(small)(small.root, content).experiment
    with pytest.raises(UserError, match=r"made with lr = 0\.0001, the experiment has 0\.0003"):
        facts_of(small)


def test_settings_that_only_change_speed_are_not_compared(small: Any) -> None:
    content = small.configuration()
    content["runs"]["pretrain"] |= {"micro_batch_size": 8, "log_every": 1}
    small.experiment = type(small)(small.root, content).experiment
    assert facts_of(small).runs[0].step == 400


def test_result_of_another_experiment_is_an_error(small: Any) -> None:
    small.change(small.paths[0], name="elsewhere")
    with pytest.raises(UserError, match="'elsewhere' is not in experiment 'fake'"):
        facts_of(small)


def test_input_replaced_since_is_an_error(small: Any) -> None:
    tiles = small.folder("tiles", "sentinel2") / "manifest.json"
    small.change(tiles, files=[{"path": "shard-00000.npy", "sha256": "0" * 64, "bytes": 1}])
    with pytest.raises(UserError, match=r"the input of latents sentinel2"):
        facts_of(small)


@pytest.mark.slow
def test_mixed_code_versions_are_a_warning_on_the_page(small: Any, tmp_path: Path) -> None:
    small.change(small.paths[0], code={"version": "0.1.0", "source": "feedfeedfeed"})
    write_report(small.experiment, small.paths, out=tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "come from 2 different versions of the code" in text
    assert "feedfeedfeed: synthesize sentinel2" in text


def test_run_that_stands_before_its_end_is_a_warning(small: Any) -> None:
    small.paths.pop()
    assert any("pretrain is at step 200 of 400" in text for text in facts_of(small).warnings)


def test_time_of_stopped_jobs_is_counted(small: Any) -> None:
    last = small.paths[-1]
    numbers = Manifest.read(last).numbers
    assert facts_of(small).runs[0].seconds == 320.0
    small.change(last, numbers={**numbers, "training_seconds": 500.0})
    assert facts_of(small).runs[0].seconds == 500.0


def test_pixel_codec_and_missing_metrics_are_no_faults(small: Any) -> None:
    numbers = Manifest.read(small.paths[-1]).numbers
    small.change(small.paths[-1], numbers={**numbers, "metrics": "nowhere/metrics.jsonl"})
    facts = facts_of(small)
    assert facts.runs[0].curve is None
    assert replace(facts.dataset("gaofen2").codec).kind == "pixel"


def test_evaluations_of_several_runs_of_a_data_set_are_told_apart_by_their_run() -> None:
    content = configuration()
    content["runs"]["again"] = content["runs"]["finetune-sentinel2"] | {"seed": 1}
    content["evaluations"]["again"] = content["evaluations"]["sentinel2-final"] | {"run": "again"}
    experiment = load(content)
    said = {name: _label(experiment, name) for name in experiment.evaluations}
    assert said["again"] == "after fine-tuning, again"
    assert said["sentinel2-final"] == "after fine-tuning, finetune-sentinel2"
    assert said["sentinel2-start"] == "before fine-tuning"
    assert said["gaofen2-final"] == "after fine-tuning"
