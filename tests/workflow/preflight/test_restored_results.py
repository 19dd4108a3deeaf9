"""Rebuilds of damaged results: no downstream job runs, unless a setting, an input or a file changed."""

from pathlib import Path
from typing import Any

import pytest

from dithc.config import stage_spec
from dithc.core.artifacts import Manifest
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.preflight.restored import find_restorable

SETTINGS: dict[str, Any] = {
    "name": "x",
    "datasets": {
        "d": {
            "title": "D",
            "source": {"kind": "image-folder", "path": "scenes"},
            "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
            "codec": "pixel",
        }
    },
    "codecs": {"pixel": {"kind": "pixel"}},
    "runs": {"r": {"dataset": "d", "steps": 4}},
}


def write(graph: ExperimentGraph, stage: str, name: str, path: str, *inputs: str) -> str:
    spec = stage_spec(graph.experiment, stage, name)
    numbers = {"step": 4, "seconds_per_step_median": 1.0} if stage == "train" else {}
    digests = {one: Manifest.read(Path(one)).digest for one in inputs}
    Manifest(stage=stage, name=name, spec=spec, inputs=digests, summary=numbers).write(Path(path))
    return path


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of a finished experiment's manifests, from scenes to the run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes" / "a").mkdir(parents=True)
    (tmp_path / "scenes" / "a" / "1.png").write_bytes(b"1")
    graph = ExperimentGraph(SETTINGS)
    graph.spec("ingest", "d")
    graph.write_config()
    paths = [write(graph, "ingest", "d", graph.path("scenes", "d"))]
    for stage, folder in (("tiles", "tiles"), ("latents", "latents")):
        paths.append(write(graph, stage, "d", graph.path(folder, "d"), paths[-1]))
    return [*paths, write(graph, "train", "r", graph.final("r"), paths[-1])]


def test_results_with_equal_settings_inputs_and_files_are_restorable(chain: list[str]) -> None:
    graph = ExperimentGraph(SETTINGS)
    assert find_restorable(graph, chain) == {path: Manifest.read(Path(path)).digest for path in chain}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"seed": 1}, 1),  # affects the tiles and everything downstream
        ({"runs": {"r": {"dataset": "d", "steps": 4, "lr": 0.5}}}, 3),
        ({"machine": {"launcher": "mpiexec", "ranks_per_node": 2}, "title": "T"}, 4),
        ({"runs": {"other": {"dataset": "d", "steps": 4}}}, 3),
    ],
)
def test_results_downstream_of_a_changed_setting_are_not_restorable(
    chain: list[str], change: dict[str, Any], kept: int
) -> None:
    assert list(find_restorable(ExperimentGraph(SETTINGS | change), chain)) == chain[:kept]


def test_new_scene_missing_manifest_and_changed_input_prevent_restoring(chain: list[str]) -> None:
    graph = ExperimentGraph(SETTINGS)
    Path(chain[1]).rename("moved")
    assert list(find_restorable(graph, chain)) == chain[:1]
    Path("moved").rename(chain[1])
    Path("scenes/a/2.png").write_bytes(b"2")
    assert find_restorable(ExperimentGraph(SETTINGS), chain) == {}
    Path("scenes/a/2.png").unlink()
    write(graph, "ingest", "d", chain[0], chain[3])
    assert chain[1] not in find_restorable(ExperimentGraph(SETTINGS), chain)
