"""The RO-Crate of a result folder describes the files that its manifests list."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.data.export.ro_crate import METADATA, write_ro_crate

WORKFLOW = Path(__file__).parents[3] / "Snakefile"


@pytest.fixture
def crate(results: Path) -> Iterator[Path]:
    yield results
    for path in (*results.glob("ro-crate-*"), *results.glob(".ro-crate-*")):
        path.unlink()


def entities(folder: Path) -> dict[str, dict[str, Any]]:
    return {entity["@id"]: entity for entity in json.loads((folder / METADATA).read_text())["@graph"]}


def ids(value: Any) -> list[str]:
    return [entity["@id"] for entity in (value if isinstance(value, list) else [value])]


def test_crate_lists_manifest_files_with_hashes_and_valid_references(crate, samples, tiles):
    path, count = write_ro_crate(crate, workflow=WORKFLOW)
    assert path == crate / METADATA
    graph = entities(crate)
    files = {name for name, entity in graph.items() if entity["@type"] == "File"}
    assert len(files) == count
    for path in (samples, tiles):
        for entry in Manifest.read(path).files:
            name = (path.parent / entry["path"]).relative_to(crate).as_posix()
            assert graph[name]["sha256"] == entry["sha256"]
            assert int(graph[name]["contentSize"]) == (crate / name).stat().st_size
    assert set(ids(graph["./"]["hasPart"])) == {*files, graph["./"]["mainEntity"]["@id"]}
    for entity in graph.values():
        for key in ("instrument", "object", "result", "hasPart", "mentions", "license", "mainEntity"):
            assert set(ids(entity.get(key, []))) <= set(graph), (entity["@id"], key)
    assert all((crate / name).exists() for name in ids(graph["./"]["hasPart"]))


def test_existing_crate_is_replaced_and_a_user_file_is_preserved(crate, samples):
    write_ro_crate(crate, workflow=WORKFLOW)
    write_ro_crate(crate, workflow=WORKFLOW)
    (crate / METADATA).write_text("of the user")
    with pytest.raises(UserError, match=METADATA):
        write_ro_crate(crate, workflow=WORKFLOW)
    assert (crate / METADATA).read_text() == "of the user"


def test_folder_without_manifests_is_rejected(tmp_path):
    with pytest.raises(UserError, match="no manifests"):
        write_ro_crate(tmp_path, workflow=WORKFLOW)
