"""Manifests: content, digest and detection of damage."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.core.artifacts import Manifest
from dithc.core.integrity import dump_checksummed, load_checksummed
from dithc.core.logging import UserError


def test_manifest_round_trip_preserves_all_fields(tmp_path):
    path = tmp_path / "manifest.json"
    written = Manifest(stage="tiles", name="a", spec={"x": 1}, summary={"n": 2}, inputs={"i": "d"}, wall_seconds=1.5)
    written.write(path)
    assert Manifest.read(path) == written
    assert json.loads(path.read_text())["digest"] == written.digest


def test_digest_depends_on_settings_inputs_and_bytes_only(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("1")
    base = {"stage": "tiles", "name": "a", "spec": {"x": 1}, "inputs": {"path/one": "d"}}
    one = Manifest(**base, files=Manifest.entries(tmp_path, [tmp_path / "a" / "f"]))
    moved = Manifest(
        **(base | {"inputs": {"other": "d"}}), files=Manifest.entries(tmp_path / "a", [tmp_path / "a" / "f"])
    )
    assert one.digest == moved.digest
    assert Manifest(**base, summary={"n": 1}, wall_seconds=3.0, files=one.files).digest == one.digest
    (tmp_path / "a" / "f").write_text("2")
    others = [
        Manifest(**base, files=Manifest.entries(tmp_path, [tmp_path / "a" / "f"])),
        Manifest(**(base | {"spec": {"x": 2}}), files=one.files),
        Manifest(**(base | {"inputs": {"path/one": "e"}}), files=one.files),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 4


@pytest.mark.parametrize("change", ["missing", "cut", "altered"])
def test_verify_reports_each_changed_file(tmp_path, change):
    path = tmp_path / "f"
    path.write_text("content")
    manifest = Manifest(stage="tiles", name="a", spec={}, files=Manifest.entries(tmp_path, [path]))
    assert manifest.verify(tmp_path) == []
    if change == "missing":
        path.unlink()
    else:
        path.write_text("cont" if change == "cut" else "Content")
    assert len(manifest.verify(tmp_path)) == 1


def test_missing_invalid_and_wrong_stage_manifests_are_rejected(tmp_path):
    with pytest.raises(UserError, match="is missing"):
        Manifest.read(tmp_path / "nothing.json")
    path = tmp_path / "m.json"
    Manifest(stage="tiles", name="a", spec={}).write(path)
    with pytest.raises(UserError, match="another stage"):
        Manifest.read(path, stage="latents")
    for text in ("", "{}", "[]", '{"stage": 1}', '{"digest": "x", "unknown": 1}'):
        path.write_text(text)
        with pytest.raises(UserError, match="cannot be read"):
            Manifest.read(path)


@pytest.mark.parametrize(
    "change",
    [
        {"wall_seconds": "x"},
        {"wall_seconds": -1.0},
        {"created_at": "<script>"},
        {"summary": [1]},
        {"name": 3},
        {"inputs": {"a": {}}},
        {"files": [{"path": "a", "sha256": 3, "bytes": 1}]},
    ],
)
def test_fields_of_wrong_types_are_rejected_in_checksummed_documents(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    Manifest(stage="fid", name="x", spec={}).write(path)
    for document in (path, Manifest.provenance_path(path)):
        content = load_checksummed(document.read_text())
        content |= {key: value for key, value in change.items() if key in content}
        document.write_text(dump_checksummed(content))
    with pytest.raises(UserError, match="cannot be read"):
        Manifest.read(path)
