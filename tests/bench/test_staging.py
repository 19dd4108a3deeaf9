"""Staging is measured beside bare decodes of the files that it reads, each a program of its own; no time is judged."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.bench import staging, table
from dithc.cli import main
from dithc.data import synthesize

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("of", ["product", "pictures"])
def test_both_programs_take_turns_and_nothing_is_left(
    tmp_path: Path, of: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PICTURES_A_CLASS", 2)
    words = [
        "bench",
        "data",
        "--of",
        of,
        "--size",
        "264" if of == "product" else "40",
        "--rounds",
        "1",
        "--threads",
        "2",
    ]
    assert main([*words, "--folder", str(tmp_path), "--json", str(tmp_path / "result.json")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    ours, bare = result["programs"]["dithc"], result["programs"]["bare"]
    assert ours["seconds"]["all"] == pytest.approx([ours["stage_seconds"] + ours["tiles_seconds"]])
    assert result["ratio"]["all"] == pytest.approx([ours["seconds"]["all"][0] / bare["seconds"]["all"][0]])
    for program in (ours, bare):
        assert program["seconds"]["median"] > 0
        assert program["peak_bytes"] > 0
        assert program["cpu_seconds"] > 0
    assert table(result) in capsys.readouterr().out


def test_bare_decodes_the_files_that_staging_reads(tmp_path: Path) -> None:
    synthesize("sentinel2", tmp_path / "files", seed=1, scenes=1, size=96)
    names = sorted(path.name.split("_", 2)[2] for path in staging._band_files(tmp_path / "files"))
    fine = [f"{band}_10m.jp2" for band in ("B02", "B03", "B04", "B08")]
    coarse = [f"{band}_20m.jp2" for band in ("B01", "B05", "B06", "B07", "B11", "B12", "B8A", "SCL")]
    assert names == sorted([*fine, *coarse, "B09_60m.jp2"])


@pytest.mark.parametrize(("option", "value"), [("--size", "1000"), ("--size", "12000"), ("--rounds", "0")])
def test_what_cannot_be_measured_ends_with_status_2(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "data", option, value]) == 2
    assert value in capsys.readouterr().err
