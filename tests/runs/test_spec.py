"""The digest of a run's settings: stores that are in use keep their names, and what decides a result changes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.config import Experiment, load
from dithc.runs import digest
from dithc.runs.spec import stage_spec


def experiment(*, views: int = 2, **run: Any) -> Experiment:
    """A run on a data set of pictures."""
    dataset = {
        "views": views,
        "title": "Toy",
        "source": {"kind": "image-folder", "path": "tiles"},
        "tiles": {"size": 32},
        "display": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixel",
    }
    settings = {"dataset": "toy", "steps": 40, "warmup_steps": 4, **run}
    content = {"codecs": {"pixel": {"kind": "pixel"}}, "datasets": {"toy": dataset}, "runs": {"a": settings}}
    return load(content)


def spec(**settings: Any) -> dict[str, Any]:
    """What decides the run's result."""
    return stage_spec(experiment(**settings), "train", "a")


def test_default_settings_have_the_digest_that_they_always_had() -> None:
    assert digest(spec()) == "d80a4490e632"
    objective = {"predict": "noise", "times": "uniform", "mean": 0.0, "weight": "none", "gamma": 5}
    same = {"objective": objective, "betas": [0.9, 0.999], "lr_schedule": "constant", "decay_share": 0.2}
    same |= {
        "optimizer": {"kind": "adamw", "momentum": 0.95, "iterations": 5},
        "ema": {"lengths": None},
        "guide": None,
        "model": {"norm": "layer", "mlp": "gelu", "position": "sincos", "qk_norm": False},
    }
    assert spec(**same) == spec()


@pytest.mark.parametrize("change", [{"norm": "rms"}, {"mlp": "swiglu"}, {"position": "rope"}, {"qk_norm": True}])
def test_blocks_of_another_kind_are_in_the_digest_where_they_are_not_the_preset_s(change: dict[str, Any]) -> None:
    plain = spec()["model"]
    assert spec(model=change)["model"] == plain | change
    family = {"preset": "ModernDiT-S/2", "qk_norm": True}
    assert spec(model=family | change)["model"] == plain | family


def source_spec(**source: Any) -> dict[str, Any]:
    dataset = {
        "title": "Toy",
        "source": {"kind": "gaofen2", "path": "scenes", **source},
        "display": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixel",
    }
    return stage_spec(load({"codecs": {"pixel": {"kind": "pixel"}}, "datasets": {"toy": dataset}}), "stage", "toy")


def test_scenes_staged_before_products_of_level_1a_were_taken_keep_their_digest() -> None:
    plain = {"kind": "gaofen2", "synthetic": None, "bands": ["B", "G", "R", "NIR"], "units": "dn", "layout": "chw"}
    assert source_spec() == {"source": {**plain, "gsd_m": 4.0}}
    assert source_spec(calibrate="none", pansharpen="none", max_shift=1.0, dem=None) == source_spec()
    assert source_spec(height_m=20.0)["source"]["height_m"] == 20.0
    assert source_spec(dem="a.tif") == source_spec(dem="b.tif")  # where it stands; what it holds is the rule's to watch
    assert source_spec(calibrate="radiance") != source_spec()


def test_measuring_changes_no_digest() -> None:
    assert spec(validate_every=5) == spec()


def test_mirror_images_have_the_digest_of_the_setting_that_they_had_before() -> None:
    assert spec(augment="mirror") == spec()
    assert spec()["flip"] is True
    assert spec(augment="none") == spec() | {"flip": False}
    assert "flip" not in spec(augment="dihedral", views=8)


def test_two_views_have_the_digest_of_latents_that_knew_no_others() -> None:
    assert "views" not in stage_spec(experiment(), "latents", "toy")
    assert stage_spec(experiment(views=8), "latents", "toy")["views"] == 8
    assert all(
        stage_spec(experiment(views=8), one, "toy") == stage_spec(experiment(), one, "toy")
        for one in ("tiles", "stage")
    )


@pytest.mark.parametrize(
    "change",
    [
        {"objective": {"predict": "v"}},
        {"objective": {"times": "logit-normal"}},
        {"objective": {"times": "logit-normal", "mean": -0.4}},
        {"objective": {"weight": "min-snr"}},
        {"objective": {"weight": "min-snr", "gamma": 3}},
        {"betas": [0.9, 0.95]},
        {"optimizer": {"kind": "muon"}},
        {"optimizer": {"kind": "muon", "iterations": 6}},
        {"ema": {"decay": 0.9999, "warmup": True, "lengths": [0.05, 0.1]}},
        {"lr_schedule": "cosine"},
        {"lr_schedule": "trapezoid"},
        {"lr_schedule": "trapezoid", "decay_share": 0.5},
        {"guide": {"by": "self"}},
        {"guide": {"by": "self", "guidance": 1.5, "interval": [0.0, 0.75]}},
    ],
    ids=str,
)
def test_what_decides_a_result_changes_the_digest(change: dict[str, Any]) -> None:
    found, plain = spec(**change), spec()
    assert {name: found[name] for name in plain if name not in change} == {
        name: value for name, value in plain.items() if name not in change
    }
    assert json.loads(json.dumps({name: found[name] for name in change})) == change  # and nothing of no effect


def test_steps_decide_a_result_where_the_learning_rate_falls_to_0_at_the_last() -> None:
    assert spec(steps=60) == spec(steps=40)
    for schedule in ("cosine", "trapezoid"):
        assert spec(lr_schedule=schedule, steps=60) != spec(lr_schedule=schedule, steps=40)
        assert spec(lr_schedule=schedule, segment=20) == spec(lr_schedule=schedule)


def test_scenes_are_in_the_digest_of_their_samples_and_of_no_others() -> None:
    content = experiment().model_dump(mode="json", exclude_unset=True)
    content["extractors"] = {"e": {"kind": "squeezenet", "path": "anywhere"}}

    def of(**scene: Any) -> dict[str, Any]:
        made = load(content | {"evaluations": {"x": {"run": "a", "extractor": "e", **scene}}})
        return stage_spec(made, "sample", "x")

    assert not {"size", "windows"} & set(of())
    assert of(size=None, windows=None) == of()
    way = {"overlap": 0.25, "shift": True}
    assert of(size=1024, windows={"shift": True}) == of() | {"size": 1024, "windows": way}


def test_samples_of_a_length_say_of_which_checkpoints_they_are_made() -> None:
    base = experiment(keep_every=10, checkpoint_every=10, ema={"lengths": [0.05, 0.1]}).model_dump(exclude_unset=True)
    base["extractors"] = {"x": {"kind": "squeezenet", "path": "x"}}

    def made(**settings: Any) -> dict[str, Any]:
        return stage_spec(
            load({**base, "evaluations": {"e": {"run": "a", "extractor": "x", **settings}}}), "sample", "e"
        )

    assert made(ema=0.07) == made() | {"ema": 0.07, "snapshots": [10, 20, 30, 40]}
    assert made(ema=0.07, at=20)["snapshots"] == [10, 20]
    assert {"ema", "snapshots"}.isdisjoint(made())
    assert digest(made()) == "0a2fc04eb09b"
    # A cache across steps decides images, with all of its settings; without one nothing is said of it.
    assert made(cache=None) == made()
    known = {"kind": "taylor", "interval": 3, "order": 1, "warmup_steps": 6}
    assert made(cache={"kind": "taylor"}) == made() | {"cache": known}
    assert made(cache={"kind": "first-block", "threshold": 0.2})["cache"] == {"kind": "first-block", "threshold": 0.2}
    assert made(at="untrained", cache={"kind": "taylor", "order": 2}) != made(at="untrained", cache={"kind": "taylor"})
    # Patches and warm-up decide images; how many ranks are stages does not.
    assert made(pipefusion=None) == made()
    assert digest(made(pipefusion=None)) == "0a2fc04eb09b"
    four = {"num_pipeline_patch": 4, "warmup_steps": 1}
    for degree in (1, 2, 4):
        assert made(pipefusion={"pipefusion_parallel_degree": degree, **four}) == made() | {"pipefusion": four}
    assert made(pipefusion={"pipefusion_parallel_degree": 4}) == made(pipefusion=four)
    assert made(pipefusion={"num_pipeline_patch": 5}) != made(pipefusion=four)
    assert made(pipefusion=four | {"warmup_steps": 2}) != made(pipefusion=four)


def codec_spec(stage: str, name: str, **settings: Any) -> dict[str, Any]:
    """What decides a trained codec, or the latents it makes."""
    base = experiment().model_dump(exclude_unset=True)
    base["codecs"]["vae"] = {"kind": "kl-vae", "trained_on": "toy", **settings}
    base["datasets"]["toy"]["codec"] = "vae"
    return stage_spec(load(base), stage, name)


def test_codec_without_later_settings_has_the_digest_that_it_always_had() -> None:
    defaults = {"equivariance": 0.0, "latent_noise": 0.0}
    for settings in ({}, defaults):
        assert digest(codec_spec("codec", "vae", **settings)) == "a8e290fe8e41"
        assert digest(codec_spec("latents", "toy", **settings)) == "804597ab3aaa"


@pytest.mark.parametrize("change", [{"equivariance": 0.1}, {"latent_noise": 0.1}])
def test_easier_latents_change_the_digest_of_a_codec(change: dict[str, Any]) -> None:
    assert codec_spec("codec", "vae", **change) == codec_spec("codec", "vae") | change
    assert codec_spec("latents", "toy", **change) != codec_spec("latents", "toy")


@pytest.mark.parametrize(
    ("name", "known"), [("imagenet", "b3b6f7116ed1"), ("sentinel2", "6a4ab555fc9c"), ("gaofen2", "9b0c32ac6853")]
)
def test_latents_of_the_paper_s_experiments_keep_their_digest(name: str, known: str) -> None:
    paper = load(Path(__file__).parents[2] / "config" / "experiments" / f"{name}.yaml")
    assert digest(stage_spec(paper, "latents", name)) == known


def test_what_an_autoencoder_of_others_sees_decides_latents_and_where_it_stands_does_not() -> None:
    base = experiment().model_dump(exclude_unset=True)
    base["datasets"]["toy"]["codec"] = "other"

    def made(**settings: Any) -> dict[str, Any]:
        said = {"kind": "torchscript", "path": "x", "latent_channels": 4, "factor": 8, "scale": 1.0, "trust": True}
        return stage_spec(
            load(base | {"codecs": {"pixel": {"kind": "pixel"}, "other": said | settings}}), "latents", "toy"
        )

    assert made(path="y") == made()
    assert "trust" not in made()["codec"]
    assert "display" in made()
    assert "display" not in made(bands="all")
    for change in ({"scale": 0.5}, {"shift": [0.0, 0.1, 0.2, 0.3]}, {"bands": [["R", "G", "B"]]}, {"low": 0.0}):
        assert made(**change)["codec"] == made()["codec"] | change


def extractor_spec(stage: str, **settings: Any) -> dict[str, Any]:
    """What decides a trained extractor, or its features."""
    base = experiment().model_dump(exclude_unset=True)
    base["extractors"] = {"x": {"kind": "classifier", "trained_on": "toy", **settings}}
    return stage_spec(load(base), stage, "x")


def test_resize_of_squeezenet_changed_by_default_has_another_digest_and_the_former_has_its_own() -> None:
    """Features of the one are never taken for the other's; all other kinds are as they were."""
    files = {"trained_on": None, "path": "x"}
    former = digest(extractor_spec("features", kind="squeezenet", resize="legacy-pytorch", **files))
    assert former == "20da4780df3f"  # of `{kind: squeezenet, path}` before
    unnamed, clean = (
        digest(extractor_spec("features", kind="squeezenet", **files, **one)) for one in ({}, {"resize": "clean"})
    )
    assert unnamed == clean == "d3088f67611b"
    assert digest(extractor_spec("features", kind="inception", **files)) == "420961f9bf24"


@pytest.mark.parametrize("stage", ["extractor", "features"])
def test_defects_change_the_digest_of_an_extractor_and_their_absence_does_not(stage: str) -> None:
    for settings in ({}, {"defects": False}):
        assert digest(extractor_spec(stage, **settings)) == "c5e508944886"
    assert extractor_spec(stage, defects=True) == extractor_spec(stage) | {"defects": True}


def stage_of(*, stage: str = "stage", split: dict[str, Any] | None = None, **source: Any) -> dict[str, Any]:
    """What decides the scenes of a source, or their tiles."""
    shown = {"bands": ["B04", "B03", "B02"], "low": 0, "high": 1}
    dataset = {
        "title": "A",
        "codec": "pixel",
        "display": shown,
        "source": {"path": "x", **source},
        "split": split or {},
    }
    experiment = load({"codecs": {"pixel": {"kind": "pixel"}}, "datasets": {"a": dataset}})
    return stage_spec(experiment, stage, "a")


def test_sources_without_later_settings_have_the_digest_that_they_always_had() -> None:
    assert digest(stage_of(kind="sentinel2")) == "a8a1b843667d"
    array = {"kind": "sentinel2-array", "bands": ["B04", "B03", "B02"], "units": "dn", "offset": 0.0}
    assert digest(stage_of(**array)) == "d52a3a36f15e"
    assert digest(stage_spec(experiment(), "stage", "toy")) == "14f6d2968006"  # of pictures


@pytest.mark.parametrize("change", [{"bands": ["B02", "B03", "B04"]}, {"gsd_m": 20.0}, {"clouds": {"classes": [9]}}])
def test_other_bands_and_grids_change_the_digest_of_scenes(change: dict[str, Any]) -> None:
    assert digest(stage_of(kind="sentinel2", **change)) != digest(stage_of(kind="sentinel2"))


def test_scenes_of_a_coarser_grid_say_by_which_rule_their_files_were_chosen() -> None:
    assert stage_of(kind="sentinel2", gsd_m=20.0)["source"]["files"] == 2
    assert "files" not in stage_of(kind="sentinel2", gsd_m=5.0)["source"]


def test_tiles_without_later_settings_have_the_digest_that_they_always_had_and_cells_in_metres_another() -> None:
    assert digest(stage_of(stage="tiles", kind="sentinel2")) == "53f55a7039fe"
    for split in ({"cell_m": 1e4}, {"cell_m": 1e4, "buffer_m": 9.0}, {"duplicates": "near"}):
        found = stage_of(stage="tiles", kind="sentinel2", split=split)["split"]
        assert found == stage_of(stage="tiles", kind="sentinel2")["split"] | split


def compared(stage: str, **settings: Any) -> str:
    """Digest of a stage of an evaluation with these settings."""
    content = {
        "datasets": {
            "d": {
                "title": "d",
                "source": {"kind": "sentinel2", "path": "p"},
                "display": {"bands": ["B04", "B03", "B02"], "low": 0, "high": 1},
                "codec": "c",
            }
        },
        "codecs": {"c": {"kind": "pixel"}},
        "runs": {"r": {"dataset": "d"}},
        "extractors": {"e": {"kind": "squeezenet", "path": "w"}},
        "evaluations": {"x": {"run": "r", "extractor": "e", **settings}},
    }
    return digest(stage_spec(load(content), stage, "x"))


@pytest.mark.parametrize("change", [{"metrics": ["bands"]}, {"triplets": [["B12", "B11", "B04"]]}])
def test_metrics_change_the_digest_of_the_comparison_alone(change: dict[str, Any]) -> None:
    assert compared("fid") == digest({"real_split": "all", "real_images": None, "extractor": "e"})
    assert compared("fid", **change) != compared("fid")
    assert compared("sample", **change) == compared("sample")
