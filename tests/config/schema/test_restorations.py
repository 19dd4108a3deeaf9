"""Faults of restorations, their defaults, and the stages that they add to a workflow."""

from pathlib import Path
from typing import Any

import pytest

from dithc.config import ExperimentConfig, load, stage_spec
from dithc.core.logging import UserError
from dithc.workflow.stages import stages_of
from dithc.workflow.workflow import Workflow

DEMO = Path(__file__).parents[3] / "config/experiments/restore-demo.yaml"


def demo(**restoration: Any) -> ExperimentConfig:
    content = load(DEMO).model_dump(mode="json", exclude_defaults=True)
    bands = {"bands": ["B02", "B03"]}
    content["datasets"]["two"] = content["datasets"]["clouded"] | {
        "rendering": {"bands": ["B02"] * 3, "low": 0, "high": 1}
    }
    content["datasets"]["two"]["source"] = content["datasets"]["clouded"]["source"] | bands
    nearest = content["datasets"]["clouded"]["source"] | {"resampling": "nearest"}
    content["datasets"]["nearest"] = content["datasets"]["clouded"] | {"source": nearest}
    content["codecs"]["vae"] = {"kind": "kl-vae", "train_dataset": "sentinel2", "latent_channels": 8}
    content["datasets"]["latent"] = content["datasets"]["sentinel2"] | {"codec": "vae"}
    content["runs"]["latent"] = content["runs"]["prior"] | {"dataset": "latent"}
    source = {"kind": "image-folder", "path": "x"}  # of several classes
    content["datasets"]["classes"] = content["datasets"]["sentinel2"] | {"source": source}
    content["datasets"]["classes"]["rendering"] = {"bands": ["R", "G", "B"], "low": 0, "high": 255}
    content["runs"]["classes"] = content["runs"]["prior"] | {"dataset": "classes", "label_dropout": 0.0}
    content["datasets"]["clusters"] = content["datasets"]["sentinel2"] | {"clusters": 4}
    content["runs"]["clusters"] = content["runs"]["prior"] | {"dataset": "clusters", "label_dropout": 0.0}
    content["restorations"] = {"x": {"run": "prior", "dataset": "clouded"} | restoration}
    return load(content)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run": "none"}, "restorations.x.run is 'none', which is not defined"),
        ({"dataset": "none"}, "restorations.x.dataset is 'none', which is not defined"),
        ({"hide": {"dataset": "none"}}, "restorations.x.hide.dataset is 'none', which is not defined"),
        ({"run": "latent", "missing": ["B11"]}, "of `kind: kl-vae` without `coarse` and `missing`"),
        ({"run": "classes"}, "has other labels than the run classes"),
        ({"run": "clusters", "dataset": "clusters"}, "has other labels than the run clusters"),
        ({"sampler": "ddim"}, "restorations.x.sampler ddim does not fit"),
        ({"coarse": {"B11": 2}}, "set `source.resampling: nearest` of datasets.clouded"),
        ({"missing": ["B05"]}, "restorations.x has B05: the tiles of runs.prior have B02"),
        (
            {"coarse": {"B11": 2, "B08": 2}, "hide": {}},
            "hide compares B11 with interpolated pixels: set `source.gsd_m: 20`",
        ),
        ({"hide": {"dataset": "two", "dataset_share": [0.5, 0.2]}}, "`hide.dataset_share` is not ascending"),
        ({"hide": {"dataset_share": [0.2, 0.5]}}, "`dataset_share` has no effect: it belongs to `hide.dataset`"),
        ({"hide": {"dataset": "two", "share": 0.2}}, "`hide.share` has no effect with `hide.dataset`"),
        ({"missing": ["B02", "B02"]}, "`missing` names a band twice"),
        ({"through_clouds": ["B02"], "missing": ["B02"]}, "both in `through_clouds` and in `missing`"),
        ({"dataset": "nearest", "coarse": {"B11": 2, "B12": 3}}, "B12 is 20 m: on a grid of 10 m, use 2"),
        ({"dataset": "nearest", "coarse": {"B03": 2}}, "B03 is 10 m: on a grid of 10 m, leave it out"),
        ({"coarse": {"B8A": 2}, "hide": {}}, "restorations.x has B8A: the tiles of runs.prior have B02"),
        ({"coarse": {"B11": 1}}, "greater than or equal to 2"),
        ({"coarse": {"B11": 2}, "missing": ["B11"]}, "both in `coarse` and in `missing`"),
        ({"missing": ["B02", "B03", "B04", "B08", "B11", "B12"]}, "lists every band"),
        ({"dataset": "two"}, "lack B04, B08, B11, B12 of the tiles"),
        ({"mtf": 0.3}, "`mtf` has no effect without `coarse`"),
        ({"hide": {"share": 0}}, "no pixel is compared"),
        ({"block_size": 100}, "set at least 128"),
        ({"members": 2}, "greater than or equal to 4"),
        ({"members": 5}, "multiple of 2"),
    ],
)
def test_contradictions_are_reported_with_the_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        demo(**settings)
    assert message in str(caught.value)


def test_spec_has_the_sampler_of_the_objective_and_no_batch() -> None:
    spec = stage_spec(demo(), "restore", "x")
    assert spec["sampler"] == "euler"
    assert spec == stage_spec(demo(batch_size=7, sampler="euler"), "restore", "x")
    assert spec != stage_spec(demo(seed=1), "restore", "x")
    absent = demo(dataset="two", missing=["B04", "B08", "B11", "B12"]).restorations["x"]
    assert absent.sampler_for("noise") == "dpm-solver"
    assert demo(dataset="nearest", coarse={"B11": 2}).restorations["x"].coarse == {"B11": 2}


def test_restored_datasets_have_scenes_only_and_the_report_needs_the_restoration() -> None:
    content = demo(hide={"dataset": "two"}).model_dump(mode="json")
    graph = Workflow(content, cores=2)
    assert graph.experiment.tiled == ["sentinel2", "nearest", "latent", "classes", "clusters"]
    stages = {stage.output: stage for stage in stages_of(graph)}
    stage = stages[graph.path("restorations", "x")]
    assert set(stage.needs) == {
        *(graph.path("scenes", name) for name in ("sentinel2", "clouded", "two")),
        graph.path("tiles", "sentinel2"),
        graph.final("prior"),
    }
    assert stage.output in graph.manifests
    assert graph.path("tiles", "clouded") not in {*graph.manifests, *stages}
    work = {
        key: Workflow(content | {"restorations": {"x": demo(**one).restorations["x"].model_dump(mode="json")}}, cores=2)
        for key, one in {
            "few": {"members": 8},
            "many": {"members": 800},
            "large": {"block_size": 4096},
            "regression": {"hide": {"regression_minutes": 90}},
        }.items()
    }
    needs = {key: (one.jobs.mem_mb("restore", "x"), one.jobs.runtime("restore", "x")) for key, one in work.items()}
    assert needs["many"][1] > needs["few"][1]
    assert needs["regression"][1] > 90
    assert needs["large"][0] > needs["few"][0]
