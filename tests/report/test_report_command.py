"""The command `dithc report` as called by the workflow."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.cli import main

WORDS = ["report", "--config", "config.json", "--out", "report.html", "--manifests"]


@pytest.fixture
def small_tree(tree_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dataset and its run with relative paths, and the configuration in the working folder."""
    monkeypatch.chdir(tmp_path)
    tree = tree_class(Path())
    tree.dataset("sentinel2")
    tree.run("pretrain")
    numbers = tree_class.score("final", "finetune-sentinel2")
    tree.write("fid", "sentinel2-final", summary=numbers)
    Path("config.json").write_text(json.dumps(tree.configuration()))
    return tree


@pytest.mark.slow
def test_report_is_written_from_manifests_without_benches(small_tree: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *map(str, small_tree.paths), "--bench"]) == 0
    output = capsys.readouterr().out
    assert "FID 48.26" in output
    assert "NOT COMPARABLE" in output
    assert output.endswith(f"report: {Path('report.html').resolve()}\n")
    assert "resumed at step 130" in Path("report.html").read_text()


def test_manifest_with_invalid_numbers_ends_with_status_2_and_no_page(
    small_tree: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(path for path in small_tree.paths if "fid" in path.parts)
    small_tree.change(path, summary={**small_tree.score("final", "finetune-sentinel2"), "kid": "low"})
    assert main([*WORDS, *map(str, small_tree.paths)]) == 2
    assert "invalid `summary.kid` of stage 'fid'" in capsys.readouterr().err
    assert not Path("report.html").exists()
