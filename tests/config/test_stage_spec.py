"""Digests of settings: explicit defaults do not change them; every setting that affects a result does."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dithc.config import ExperimentConfig, load, stage_spec
from dithc.core.artifacts import digest

STABLE = {"train": "5021325d4676", "latents": "bfe87d310333", "sample": "0cb2e8d59023"}


def experiment(
    *, views: int = 2, clusters: int | None = None, classes: str = "folders", **run: Any
) -> ExperimentConfig:
    dataset = {
        "views": views,
        "clusters": clusters,
        "title": "Toy",
        "source": {"kind": "image-folder", "path": "tiles", "classes": classes},
        "tiles": {"size": 32},
        "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixel",
    }
    settings = {"dataset": "toy", "steps": 40, "warmup_steps": 4, **run}
    content = {"codecs": {"pixel": {"kind": "pixel"}}, "datasets": {"toy": dataset}, "runs": {"a": settings}}
    return load(content)


def spec(**settings: Any) -> dict[str, Any]:
    return stage_spec(experiment(**settings), "train", "a")


def test_explicit_defaults_do_not_change_the_digest() -> None:
    objective = {
        "prediction_type": "noise",
        "timestep_sampling": "uniform",
        "logit_mean": 0.0,
    }
    same = {"objective": objective, "betas": [0.9, 0.999], "lr_schedule": "constant", "decay_fraction": 0.2}
    same |= {
        "optimizer": {"kind": "adamw", "momentum": 0.95},
        "model": {"norm": "layer", "mlp": "gelu", "position_embedding": "sincos", "qk_norm": False},
    }
    assert spec(**same) == spec(validate_every=5) == spec()
    assert stage_of(kind="sentinel2", clouds={"buffer_m": 0.0}) == stage_of(kind="sentinel2")


def test_terrain_model_path_does_not_change_the_digest() -> None:
    gaofen = partial(stage_of, kind="gaofen2", shown=["R", "G", "B"])
    assert gaofen(dem="a.tif") == gaofen(dem="b.tif")
    assert gaofen(calibrate="radiance") != gaofen()


@pytest.mark.parametrize("change", [{"equivariance": 0.1}, {"latent_noise": 0.1}])
def test_latent_regularization_changes_the_digest_of_a_codec(change: dict[str, Any]) -> None:
    base = experiment().model_dump(exclude_unset=True)
    base["datasets"]["toy"]["codec"] = "vae"
    plain, easier = (
        load(base | {"codecs": {"vae": {"kind": "kl-vae", "train_dataset": "toy", **settings}}})
        for settings in ({}, change)
    )
    assert stage_spec(easier, "codec", "vae") == stage_spec(plain, "codec", "vae") | change
    assert stage_spec(easier, "latents", "toy") != stage_spec(plain, "latents", "toy")


@pytest.mark.parametrize("change", [{"views": 8}, {"clusters": 4}])
def test_views_and_clusters_change_only_the_digest_of_latents(change: dict[str, Any]) -> None:
    plain, changed = experiment(classes="one"), experiment(classes="one", **change)
    assert stage_spec(changed, "latents", "toy") == stage_spec(plain, "latents", "toy") | change
    assert all(stage_spec(changed, stage, "toy") == stage_spec(plain, stage, "toy") for stage in ("tiles", "ingest"))


CHANGES: list[dict[str, Any]] = [
    {"objective": {"timestep_sampling": "logit-normal", "logit_mean": -0.4}},
    {"betas": [0.9, 0.95]},
    {"optimizer": {"kind": "muon", "momentum": 0.9}},
    {"ema": {"decay": 0.9999, "warmup": False}},
    {"lr_schedule": "trapezoid", "decay_fraction": 0.5},
    {"augment": "none"},
    {"model": {"norm": "rms"}},
    *({"lr": 2e-4}, {"global_batch_size": 56}, {"dtype": "bf16"}, {"max_grad_norm": None}),
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_settings_that_affect_a_result_change_the_digest(change: dict[str, Any]) -> None:
    found, plain = spec(**change), spec()
    assert {name for name in plain if found.get(name) != plain[name]} == set(change)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 60, "steps_per_job": 20},
        {"micro_batch_size": 4},
        {"activation_checkpointing": "block"},
        {"keep_last": 5},
    ],
)
def test_settings_without_effect_on_the_result_preserve_the_digest(change: dict[str, Any]) -> None:
    assert spec(**change) == spec()


def test_steps_change_the_digest_with_a_decaying_learning_rate() -> None:
    assert spec(lr_schedule="trapezoid", steps=60) != spec(lr_schedule="trapezoid", steps=40)
    assert spec(lr_schedule="trapezoid", steps_per_job=20) == spec(lr_schedule="trapezoid")


def test_sample_spec_contains_image_settings() -> None:
    base = experiment().model_dump(exclude_unset=True)
    base["extractors"] = {"x": {"kind": "squeezenet", "path": "x"}}

    def spec(**settings: Any) -> dict[str, Any]:
        return stage_spec(
            load({**base, "evaluations": {"e": {"run": "a", "extractor": "x", **settings}}}), "sample", "e"
        )

    assert spec(image_size=None, windows=None) == spec()
    windows = {"overlap": 0.25, "random_shift": True}
    assert spec(image_size=1024, windows={"random_shift": True}) == spec() | {"image_size": 1024, "windows": windows}
    assert spec(metrics=["precision-recall"]) == spec(), "metrics affect only the comparison"


def test_latents_spec_contains_external_codec_settings_but_no_path() -> None:
    base = experiment().model_dump(exclude_unset=True)
    base["datasets"]["toy"]["codec"] = "other"

    def spec(**settings: Any) -> dict[str, Any]:
        defaults = {
            "kind": "torchscript",
            "path": "x",
            "latent_channels": 4,
            "downsampling_factor": 8,
            "scaling_factor": 1.0,
            "trust_code": True,
        }
        return stage_spec(
            load(base | {"codecs": {"pixel": {"kind": "pixel"}, "other": defaults | settings}}), "latents", "toy"
        )

    assert spec(path="y") == spec()
    assert "trust_code" not in spec()["codec"]
    assert "rendering" in spec()
    assert "rendering" not in spec(bands="all")
    for change in (
        {"scaling_factor": 0.5},
        {"shift_factor": [0.0, 0.1, 0.2, 0.3]},
        {"bands": [["R", "G", "B"]]},
        {"low": 0.0},
    ):
        assert spec(**change)["codec"] == spec()["codec"] | change


def extractor_spec(stage: str, **settings: Any) -> dict[str, Any]:
    base = experiment().model_dump(exclude_unset=True)
    base["extractors"] = {"x": {"kind": "classifier", "train_dataset": "toy", **settings}}
    return stage_spec(load(base), stage, "x")


def test_resize_and_defects_change_the_digest_of_an_extractor() -> None:
    files = {"kind": "squeezenet", "train_dataset": None, "path": "x"}
    assert extractor_spec("features", **files, resize="legacy-pytorch") != extractor_spec("features", **files)
    assert extractor_spec("features", **files, resize="clean") == extractor_spec("features", **files)
    for stage in ("extractor", "features"):
        assert extractor_spec(stage, train_on_defects=True) == extractor_spec(stage) | {"train_on_defects": True}


def stage_of(
    *,
    stage: str = "ingest",
    split: dict[str, Any] | None = None,
    shown: Sequence[str] = ("B04", "B03", "B02"),
    **source: Any,
) -> dict[str, Any]:
    """Return the settings that determine the scenes of a source, or their tiles."""
    dataset = {
        "title": "A",
        "codec": "pixel",
        "rendering": {"bands": shown, "low": 0, "high": 1},
        "source": {"path": "x", **source},
        "split": split or {},
    }
    experiment = load({"codecs": {"pixel": {"kind": "pixel"}}, "datasets": {"a": dataset}})
    return stage_spec(experiment, stage, "a")


@pytest.mark.parametrize(
    "change", [{"bands": ["B02", "B03", "B04"]}, {"gsd_m": 20.0}, {"clouds": {"scl_classes": [9]}}]
)
def test_other_bands_and_grids_change_the_digest_of_scenes(change: dict[str, Any]) -> None:
    assert digest(stage_of(kind="sentinel2", **change)) != digest(stage_of(kind="sentinel2"))
    for split in ({"cell_size_m": 1e4, "buffer_m": 9.0}, {"duplicates": "near"}):
        found = stage_of(stage="tiles", kind="sentinel2", split=split)["split"]
        assert found == stage_of(stage="tiles", kind="sentinel2")["split"] | split


def test_digests_of_the_demo_are_stable() -> None:
    """Digests are stable. A changed value makes users recompute every stage."""
    demo = load(Path(__file__).parents[2] / "config" / "experiments" / "demo.yaml")
    found = {
        stage: digest(stage_spec(demo, stage, "sentinel2-after" if stage == "sample" else "sentinel2"))
        for stage in STABLE
    }
    assert found == STABLE
