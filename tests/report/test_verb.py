"""The command `dithc report` as called by the workflow."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.cli import main

WORDS = ["report", "--config", "config.json", "--out", "report.html", "--manifests"]


@pytest.fixture
def planted(plant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dataset and its run with relative paths, and the configuration in the working folder."""
    monkeypatch.chdir(tmp_path)
    tree = plant(Path())
    tree.dataset("sentinel2")
    tree.run("pretrain")
    numbers = plant.score("final", "finetune-sentinel2")
    tree.write("fid", "sentinel2-final", numbers=numbers)
    Path("config.json").write_text(json.dumps(tree.configuration()))
    return tree


@pytest.mark.slow
def test_report_is_written_from_manifests_and_no_bench(planted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *map(str, planted.paths), "--bench"]) == 0
    said = capsys.readouterr().out
    assert "FID 48.26" in said
    assert "NOT COMPARABLE" in said
    assert said.endswith(f"report: {Path('report.html').resolve()}\n")
    assert "resumed at step 130" in Path("report.html").read_text()


def test_missing_manifest_ends_with_status_2_and_no_page(planted: Any) -> None:
    assert main([*WORDS, *map(str, planted.paths), "gone.json"]) == 2
    assert not Path("report.html").exists()


def test_manifest_of_numbers_that_no_stage_writes_ends_with_status_2_and_no_page(
    planted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(path for path in planted.paths if "fid" in path.parts)
    planted.change(path, numbers={**planted.score("final", "finetune-sentinel2"), "kid": "low"})
    assert main([*WORDS, *map(str, planted.paths)]) == 2
    assert "invalid `numbers.kid` of stage 'fid'" in capsys.readouterr().err
    assert not Path("report.html").exists()
