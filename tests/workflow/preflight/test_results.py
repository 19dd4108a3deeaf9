"""Detection of incomplete results by file sizes."""

import os
from pathlib import Path

import pytest

from dithc.core.artifacts import Manifest, outputs
from dithc.core.integrity import dump_checksummed
from dithc.core.logging import UserError
from dithc.workflow.preflight.results import check_owner, damage_message, find_damaged


@pytest.fixture
def result(tmp_path: Path) -> Path:
    paths = [tmp_path / "tiles" / f"shard-{number}.npy" for number in range(3)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(b"12345")
    manifest = tmp_path / "tiles" / "manifest.json"
    Manifest(stage="tiles", name="x", spec={}, files=Manifest.entries(manifest.parent, paths)).write(manifest)
    return manifest


def test_missing_and_truncated_files_are_reported_without_hashing(result: Path) -> None:
    assert find_damaged([str(result), str(result.parent / "no.json")]) == {}
    (result.parent / "shard-0.npy").unlink()
    os.truncate(result.parent / "shard-1.npy", 4)
    (result.parent / "shard-2.npy").write_bytes(b"54321")
    faults = find_damaged([str(result)])[str(result)]
    assert len(faults) == 2
    assert faults[0].endswith("shard-0.npy is missing")
    assert faults[1].endswith("shard-1.npy has 4 bytes, 5 were written")
    assert damage_message(str(result), faults).endswith("is missing (and 1 more)")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": 1, "files": 3}', "\x00\x01"])
def test_unreadable_manifest_is_reported(result: Path, text: str) -> None:
    result.write_text(text)
    assert "cannot be read" in find_damaged([str(result)])[str(result)][0]


def test_user_files_in_place_of_results_are_rejected(result: Path, tmp_path: Path) -> None:
    check_owner(tmp_path, [result, tmp_path / "missing.json"])
    (tmp_path / "config.json").write_text(dump_checksummed({}))
    (tmp_path / "empty.json").touch()
    check_owner(tmp_path, [result, tmp_path / "empty.json"])
    for name in ("config.json", "report.html", "runs/step_0000004.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        before = path.read_text() if path.exists() else None
        path.write_text("of the user")
        with pytest.raises(UserError, match=path.name):
            check_owner(tmp_path, [result, path])
        path.unlink() if before is None else path.write_text(before)


def test_damaged_results_of_dithc_are_accepted(result: Path, tmp_path: Path) -> None:
    outputs.OutputFolder.of(result).claim(stage="tiles", name="x")
    outputs.OutputFolder.of(result).finish()
    content = bytearray(result.read_bytes())
    for damaged_bytes in (b"", content[:-90], content[:5], bytes([content[0] ^ 1, *content[1:]])):
        result.write_bytes(damaged_bytes)
        check_owner(tmp_path, [result])


def test_figures_listed_in_a_report_without_marker_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    figure = tmp_path / "figures" / "loss.png"
    figure.write_bytes(b"of dithc")
    (tmp_path / "report.json").write_text(dump_checksummed({"files": Manifest.entries(tmp_path, [figure])}))
    check_owner(tmp_path, [figure])
    figure.write_bytes(b"a longer file of the user")
    with pytest.raises(UserError, match="loss"):
        check_owner(tmp_path, [figure])
