"""Results that are not whole are found by the sizes of their files."""

import os
from pathlib import Path

import pytest

from dithc.runs import Manifest
from dithc.workflow.checks.products import damaged, told


@pytest.fixture
def result(tmp_path: Path) -> Path:
    paths = [tmp_path / "tiles" / f"shard-{number}.npy" for number in range(3)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(b"12345")
    manifest = tmp_path / "tiles" / "manifest.json"
    Manifest(stage="tiles", name="x", spec={}, files=Manifest.entries(manifest.parent, paths)).write(manifest)
    return manifest


def test_a_whole_result_and_one_that_is_not_there_have_no_fault(result: Path) -> None:
    assert damaged([str(result), str(result.parent / "no.json")]) == {}


def test_missing_and_cut_files_are_named_and_other_bytes_are_not_looked_for(result: Path) -> None:
    (result.parent / "shard-0.npy").unlink()
    os.truncate(result.parent / "shard-1.npy", 4)
    (result.parent / "shard-2.npy").write_bytes(b"54321")
    faults = damaged([str(result)])[str(result)]
    assert len(faults) == 2
    assert faults[0].endswith("shard-0.npy is missing")
    assert faults[1].endswith("shard-1.npy has 4 bytes, 5 were written")
    assert told(str(result), faults).endswith("is missing (and 1 more)")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": 1, "files": 3}', "\x00\x01"])
def test_a_manifest_that_cannot_be_read_is_a_fault(result: Path, text: str) -> None:
    result.write_text(text)
    assert "cannot be read" in damaged([str(result)])[str(result)][0]


def test_a_folder_in_the_place_of_a_file_is_a_fault(result: Path) -> None:
    (result.parent / "shard-0.npy").unlink()
    (result.parent / "shard-0.npy" / "x").mkdir(parents=True)
    assert damaged([str(result)])
