"""Checks of user files before the first job: missing files, incomplete files, other bands."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.config import stage_spec
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.preflight.inputs import check_inputs

SCENE = "S2{}_MSIL{}_20240601T100031_N0510_R122_T32UPU_20240601T140000.SAFE"


def settings(**source: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "datasets": {
            "d": {
                "title": "D",
                "source": {"kind": "sentinel2", "path": "scenes", **source},
                "rendering": {"bands": ["B04", "B03", "B02"], "low": 0, "high": 0.3},
                "codec": "c",
            }
        },
        "codecs": {
            "c": {"kind": "diffusers", "path": "vae", "latent_channels": 4, "downsampling_factor": 8, "bands": "all"}
        },
        "runs": {"r": {"dataset": "d", "init_from_file": "weights"}},
        "extractors": {"e": {"kind": "inception", "path": "inception"}},
        "evaluations": {"v": {"run": "r", "extractor": "e", "band_triplets": [["B12", "B11", "B10"]]}},
    }


WEIGHTS, EMPTY = "diffusion_pytorch_model.safetensors", (2).to_bytes(8, "little") + b"{}"
RULES = {"ingest", "latents", "pretrain", "features_real"}


@pytest.fixture
def input_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with complete inputs."""
    monkeypatch.chdir(tmp_path)
    for name in ("A", "B"):
        product = tmp_path / "scenes" / SCENE.format(name, "1C")
        product.mkdir(parents=True)
        (product / "manifest.safe").write_text("<xml/>")
    for folder in ("vae", "weights"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
        (tmp_path / folder / WEIGHTS).write_bytes(EMPTY)
    (tmp_path / "inception").write_bytes(EMPTY)
    return tmp_path


def report(rules: set[str] = RULES, **changes: Any) -> str:
    content = settings(**changes.pop("source", {})) | changes
    try:
        check_inputs(ExperimentGraph(content), rules)
    except UserError as error:
        return str(error)
    return ""


def test_complete_inputs_are_accepted(input_folder: Path) -> None:
    assert report() == ""


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("scenes", "datasets.d.source.path: scenes: no such file or folder"),
        ("inception", "extractors.e.path: inception: no such file or folder"),
        ("vae/config.json", "codecs.c.path: vae: the folder has no config.json"),
        (f"vae/{WEIGHTS}", f"codecs.c.path: vae/{WEIGHTS}: no such file"),
        (f"weights/{WEIGHTS}", f"runs.r.init_from_file: weights/{WEIGHTS}: no such file"),
    ],
)
def test_missing_inputs_of_planned_jobs_are_reported(input_folder: Path, removed: str, message: str) -> None:
    (input_folder / removed).rename(input_folder / "elsewhere")
    assert message in report()
    assert "fix:" in report()
    assert report({"tiles", "report"}) == ""
    if "/" not in removed:
        assert report(machine={"inputs_visible_on": "nodes"}) == "", "nodes may have other files"


def test_layers_are_inputs_of_ingestion(input_folder: Path) -> None:
    content, specs = settings(bands=["B02", "B03", "B04", "B10", "B11", "B12"]), []
    layer = {"kind": "geotiff", "path": "dem.tif", "bands": ["DEM"], "units": "m"}
    content["datasets"]["d"]["layers"] = {"dem": layer}
    with pytest.raises(UserError, match=r"datasets.d.layers.dem.path: dem.tif: no such file"):
        check_inputs(ExperimentGraph(content), RULES)
    for text in ("a", "b"):
        (input_folder / "dem.tif").write_text(text)
        check_inputs(ExperimentGraph(content), RULES)
        specs.append(ExperimentGraph(content).spec("ingest", "d"))
    assert specs[0] != specs[1]
    assert "dem.tif" not in specs[0]
    assert "layer dem" in stage_spec(ExperimentGraph(content).experiment, "ingest", "d")


def test_empty_folders_and_wrong_path_types_are_reported(input_folder: Path) -> None:
    (input_folder / "inception").unlink()
    (input_folder / "inception").mkdir()
    (input_folder / "vae").rename(input_folder / "was")
    (input_folder / "vae").write_text("weights")
    (input_folder / "empty").mkdir()
    (input_folder / "empty" / ".hidden").touch()
    assert "datasets.d.source.path: empty: the folder is empty" in report(source={"path": "empty"})
    assert "extractors.e.path: inception: a folder; expected the weights file" in report()
    assert "codecs.c.path: vae: a file; expected the folder with config.json" in report()


def test_shards_are_accepted_and_missing_or_invalid_files_are_reported(input_folder: Path) -> None:
    shards = [WEIGHTS.replace(".", f"-{number:05d}-of-00002.", 1) for number in (1, 2)]
    for folder in ("vae", "weights"):
        (input_folder / folder / WEIGHTS).unlink()
        for shard in shards:
            (input_folder / folder / shard).write_bytes(EMPTY)
    (input_folder / "weights" / f"{WEIGHTS}.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ab", shards, strict=True))})
    )
    assert report() == ""
    (input_folder / "weights" / shards[1]).unlink()
    (input_folder / "vae" / shards[0]).write_text("version https://git-lfs.github.com/spec/v1")
    (input_folder / "inception").write_text("<html>")
    message = report()
    assert f"runs.r.init_from_file: weights: {shards[1]} missing" in message
    assert f"codecs.c.path: vae/{shards[0]}: a Git LFS pointer" in message
    assert "extractors.e.path: inception: an HTML page" in message


def test_bands_missing_in_products_are_reported_before_ingestion(input_folder: Path) -> None:
    for product in list((input_folder / "scenes").iterdir()):
        product.rename(product.with_name(product.name.replace("L1C", "L2A")))
    assert "evaluations.v.band_triplets has B10: the scenes of d have B01, B02" in report()
    message = report(source={"bands": ["B02", "B03", "B04", "B10", "B11", "B12"]})
    assert "datasets.d.source.bands has B10" in message
    (input_folder / "scenes" / "renamed.SAFE").mkdir()
    assert "B10" not in report(), "the product names do not contain the level"


def test_bands_of_ingested_scenes_are_read_from_the_manifest(input_folder: Path) -> None:
    graph = ExperimentGraph(settings())
    numbers = {"bands": ["B02", "B03", "B04", "B11", "B12"]}
    spec = stage_spec(graph.experiment, "ingest", "d")
    Manifest(stage="ingest", name="d", spec=spec, summary=numbers).write(Path(graph.path("scenes", "d")))
    assert "evaluations.v.band_triplets has B10: the scenes of d have B02, B03, B04, B11, B12" in report({"sample"})
