"""The schema rejects invalid configurations before the first job, and docs/config.md is current."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dithc.config import ExperimentConfig, MachineConfig, load, load_experiment, load_machine
from dithc.config.generate import page, schema_json
from dithc.config.schema.training import RunConfig
from dithc.config.suggestions import sections
from dithc.core.logging import UserError

ROOT = Path(__file__).parent.parent.parent
EXPERIMENTS = sorted((ROOT / "config" / "experiments").glob("*.yaml"))


DEMO = yaml.safe_load((ROOT / "config" / "experiments" / "demo.yaml").read_text())


def demo() -> dict[str, Any]:
    return copy.deepcopy(DEMO)


def codec_of(**settings: Any) -> dict[str, Any]:
    made = {"kind": "kl-vae", "train_dataset": "landscape", **settings}
    return {"codecs": {**DEMO["codecs"], "c": made}}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_is_valid_and_named_like_the_file(path: Path) -> None:
    assert load(path).name == path.stem


def test_generated_files_are_current() -> None:
    assert (ROOT / "docs" / "config.md").read_text() == page(), "run `make generate`"


def test_every_field_is_documented() -> None:
    schema = json.loads(schema_json())
    for model in [schema, *schema["$defs"].values()]:
        for name, field in model.get("properties", {}).items():
            assert field.get("description"), f"{model['title']}.{name} has no docstring"


def test_every_key_is_on_the_page_once() -> None:
    text = page()
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert len(titles) == len(set(titles)), "two headings have the same anchor"
    models = {(one.location, one.model): one.model for one in sections(ExperimentConfig)}.values()
    assert text.count("\n| `") == sum(len(model.model_fields) for model in models)


def run(**settings: Any) -> dict[str, Any]:
    return {"runs": {"a": {"dataset": "landscape", **settings}}}


def score(**settings: Any) -> dict[str, Any]:
    """Return an evaluation of the demo's pre-training run, which predicts a flow."""
    return {"evaluations": {"x": {"run": "pretrain", "extractor": "landscape-classifier", **settings}}}


FLOW: dict[str, Any] = {"objective": {"prediction_type": "flow"}, "model": {"learn_sigma": False}}


def flow(**settings: Any) -> dict[str, Any]:
    return score(sampler="euler", **settings)


def fine_tuned(*, start: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the runs `a`, and `b` before it."""
    return {"runs": run(init_from_run="b", **settings)["runs"] | {"b": {"dataset": "landscape", **start}}}


def with_source(**source: Any) -> dict[str, Any]:
    return {"datasets": DEMO["datasets"] | {"x": DEMO["datasets"]["landscape"] | {"source": source}}}


def classifier_config(source: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return a classifier for the tiles of a source."""
    classifier = {"kind": "classifier", "train_dataset": "x", **settings}
    return with_source(**source) | {"extractors": DEMO["extractors"] | {"x": classifier}}


TILE = DEMO["datasets"]["landscape"]["tiles"]["size"]
SENTINEL2 = DEMO["datasets"]["landscape"] | {
    "source": {"kind": "sentinel2", "synthetic": {"scenes": 1, "size": 510}},
    "rendering": {"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3},
}
ONE_CLASS: list[dict[str, Any]] = [
    {"kind": "image-folder", "path": "pictures", "classes": "one"},
    {"kind": "image-folder", "synthetic": {"classes": 1}},
    {"kind": "gaofen2", "path": "scenes", "bands": ["R", "G", "B"]},
]
# Ranges of single values are on the generated page, which another test compares.
MISTAKES: list[tuple[dict[str, Any], list[str]]] = [
    ({"colour": 1}, ["colour", "unknown key"]),
    ({"__use_yte__": True}, ["__use_yte__", "unknown key"]),
    ({"name": "Upper Case"}, ["name", "Upper Case"]),
    ({"title": "a\nb"}, ["title", "one line"]),
    ({"results": "r$(touch pwned)"}, ["results", "contains $"]),
    ({"machine": {"launcher": "none", "ranks_per_node": 2}}, ["launcher", "one rank"]),
    ({"machine": {"launcher": "mpiexec", "ranks_per_node": 5}}, ["global_batch_size", "5 ranks"]),
    ({"machine": {"memory": {"spill_folder": "/scratch"}}}, ["machine.memory", "spill_gib"]),
    ({"extractors": {"x": {"kind": "inception"}}}, ["extractors.x", "path"]),
    ({"extractors": {"x": {"kind": "inception", "path": "x.pth", "train_on_defects": True}}}, ["`train_on_defects`"]),
    *(
        (classifier_config(source), ["all tiles of datasets.x have one class", "`train_on_defects: true`"])
        for source in ONE_CLASS
    ),
    (with_source(kind="gaofen2"), ["datasets.x.source", "exactly one"]),
    (with_source(kind="geotiff", bands=["R"], units="byte", synthetic={}), ["`synthetic` is available"]),
    (with_source(kind="sentinel2-array", path="x", bands=["B02"], units="dn"), ["`offset` must be declared"]),
    (with_source(kind="sentinel2", synthetic={"size": 382}), ["`synthetic.size` is 382", "use 378 or 384"]),
    (codec_of(train_dataset="x"), ["codecs.c.train_dataset", "landscape"]),
    (codec_of(equivariance=0.6, latent_noise=0.5), ["codecs.c", "their sum is at most 1", "0.6"]),
    (codec_of(equivariance=0.1, downsampling_factor=32), ["codecs.c.equivariance", "lower `downsampling_factor`"]),
    (run(dataset="nowhere"), ["runs.a.dataset", "nowhere", "landscape"]),
    (run(init_from_run="b"), ["runs.a.init_from_run", "'b'"]),
    (run(steps=10, steps_per_job=3), ["steps_per_job", "does not divide"]),
    (run(steps=9_000_000, steps_per_job=1), ["steps_per_job", "more than 10000 jobs"]),
    (run(lr=-1e-4), ["runs.a.lr", "above 0"]),
    (run(lr=float("nan")), ["runs.a.lr", "finite number"]),
    (run(steps=True), ["runs.a", "`steps` is True"]),
    (run(betas=[0.9]), ["runs.a.betas.1", "required"]),
    (run(model={"num_heads": 5}), ["hidden_size 384", "num_heads 5"]),
    (run(model={"hidden_size": 40, "num_heads": 4, "position_embedding": "rope"}), ["not a multiple of 4"]),
    (run(model={"qk_norm": 1.5}), ["runs.a.model.qk_norm", "true or false"]),
    (run(model={"norm": True}), ["runs.a.model", "`norm` is True"]),
    (run(model={"norm": "rms"}, init_from_file="DiT.pt"), ["runs.a", "original blocks", "norm rms, mlp gelu"]),
    (run(objective={"prediction_type": "flow"}), ["runs.a", "`model.learn_sigma: false`"]),
    (run(**FLOW, init_from_file="DiT.pt"), ["contains a network that predicts noise"]),
    (run(objective={"logit_mean": 0.5}), ["runs.a.objective", "`logit_mean`", "`timestep_sampling: logit-normal`"]),
    (run(optimizer={"momentum": 0.9}), ["runs.a.optimizer", "`momentum` has no effect", "`kind: muon`"]),
    (run(lr="auto", optimizer={"kind": "muon"}), ["runs.a", "`lr: auto`", "adamw", "flow"]),
    (run(decay_fraction=0.5), ["runs.a", "`decay_fraction` has no effect", "trapezoid"]),
    (
        run(steps=10, warmup_steps=9, lr_schedule="trapezoid"),
        ["runs.a", "`warmup_steps` 9", "2 steps of decay", "`steps` 10"],
    ),
    (run(augment="dihedral"), ["runs.a.augment dihedral", "datasets.landscape.views is 2", "set it to 8"]),
    (
        fine_tuned(start={}, model={"preset": "ModernDiT-S/2"}),
        ["runs.a.model has blocks of norm rms, mlp swiglu", "`init_from_run`, of norm layer", "use the same settings"],
    ),
    (
        fine_tuned(start={}, **FLOW),
        ["runs.a.objective.prediction_type is flow", "runs.b", "predicts noise", "set both to the same value"],
    ),
    (
        {"runs": {one: {"dataset": "landscape", "init_from_run": "ba"[one == "b"]} for one in "ab"}, "evaluations": {}},
        ["circular"],
    ),
    (score(sampler="dpm-solver"), ["evaluations.x.sampler dpm-solver", "is flow: choose euler or heun"]),
    (run() | score(run="a", sampler="heun"), ["evaluations.x.sampler heun", "is noise: choose another sampler"]),
    (score(checkpoint=121), ["evaluations.x.checkpoint is step 121", "runs.pretrain does not keep"]),
    (score(sampler="ddim", solver_order=2), ["evaluations.x", "`solver_order` applies to the samplers", "ddim"]),
    ({"datasets": {"x": SENTINEL2 | {"clusters": 12}}}, ["datasets.x", "`clusters` is 12", "a power of two"]),
    (
        {"datasets": {"x": SENTINEL2 | {"clusters": 8, "tiles": {"size": 64, "masks": True}}}},
        ["datasets.x", "incomplete tiles"],
    ),
    ({"datasets": {"x": DEMO["datasets"]["landscape"] | {"clusters": 8}}}, ["datasets.x", "`source.classes: one`"]),
    (score(guidance_scale=2, guidance_interval=[0.6, 0.2]), ["starts at 0.6 and ends at 0.2"]),
    (score(guidance_interval=[0.2, 0.6]), ["`guidance_interval` requires a `guidance_scale` other than 1"]),
    (score(guidance_reference=80), ["`guidance_reference` requires `guidance_scale` above 1; with 1.0"]),
    (score(guidance_reference=80, guidance_scale=2, checkpoint="start"), ["weights after the first step"]),
    (
        score(guidance_reference=80, guidance_scale=2, checkpoint=80),
        ["is also the `checkpoint`: choose an earlier step"],
    ),
    (
        score(guidance_reference=81, guidance_scale=2),
        ["guidance_reference is step 81", "runs.pretrain does not keep it"],
    ),
    (score(guidance_reference=160, guidance_scale=2), ["guidance_reference is step 160", "an earlier checkpoint"]),
    (score(metrics=["bands", "bands"]), ["evaluations.x", "`metrics` has bands twice"]),
    (score(band_triplets=[["R", "G", "B"]] * 2), ["evaluations.x", "`band_triplets` has R+G+B twice"]),
    (flow(band_triplets=[["B12", "B11", "B99"]]), ["evaluations.x.band_triplets has B12, B11, B99", "datasets."]),
    (score(num_images=1), ["evaluations.x", "`num_images` is 1", "at least two"]),
    (flow(image_size=TILE // 2), ["evaluations.x.image_size", "is smaller than the tiles of runs.pretrain"]),
    (flow(image_size=4096), ["evaluations.x.image_size 4096 is larger than the tiles", "`windows: {overlap: 0.25}`"]),
    (flow(image_size=2049, windows={}), ["evaluations.x.image_size 2049 is not a multiple of", "use 2048"]),
    (score(windows={"overlap": 0.5}), ["evaluations.x", "require the `image_size`"]),
    (score(image_size=2048, windows={"overlap": 0}), ["evaluations.x.windows", "leave seams", "`random_shift: true`"]),
    (score(image_size=2048, windows={}, metrics=["bands"]), ["evaluations.x", "a scene (`windows`) has no score"]),
    (
        score(checkpoint="codec", image_size=2048),
        ["`image_size` applies to generated images, and `checkpoint` is codec"],
    ),
]


@pytest.mark.parametrize(("change", "words"), MISTAKES)
def test_invalid_settings_are_reported_with_key_and_fix(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load({**demo(), **change})
    for word in [*words, "got:", "expected:", "fix:"]:
        assert word in str(caught.value)


def test_classifier_accepts_one_class_with_defects_and_user_folders() -> None:
    accepted = [classifier_config(source, train_on_defects=True) for source in ONE_CLASS]
    accepted += [
        classifier_config({"kind": "image-folder", "path": "pictures"}),
        classifier_config({"kind": "image-folder", "synthetic": {}}),
    ]
    for change in accepted:
        assert "x" in load({**demo(), **change}).extractors


def test_guidance_requires_dropped_labels_or_a_reference() -> None:
    run = {"dataset": "landscape", "label_dropout": 0.0, "steps": 200, "keep_every": 100}
    evaluation = {"run": "a", "extractor": "landscape-classifier", "guidance_scale": 2}
    load({**demo(), "runs": {"a": run}, "evaluations": {"x": {**evaluation, "guidance_reference": 100}}})
    with pytest.raises(UserError, match="with dropped labels"):
        load({**demo(), "runs": {"a": run}, "evaluations": {"x": evaluation}})


def test_faults_are_reported_with_file_line_and_column(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text("seed: 1\n\nstore: a\n")
    other.write_text("# over it\nseed: -1\n")
    with pytest.raises(UserError, match=r"seed \(line 2, column 1\): "):
        load(other)
    demo_file = ROOT / "config" / "experiments" / "demo.yaml"
    with pytest.raises(UserError, match=r"seed \(line 2, column 1 of configuration file .*other.yaml\)"):
        load_experiment([demo_file, one, other])
    other.write_text("seed: 1\nmachine:\n  nodes: 1\n  nodes: 2\n")
    with pytest.raises(UserError, match=r"other.yaml, line 4, column 3: .*\n.*duplicate key `nodes`, first in line 3"):
        load(other)


@pytest.mark.parametrize(
    "text",
    ["config: 5\nmachine: 1", "config: ['machine=[']", "config: ['machine=a']", "config: ['machine={a: 1}']", "["],
)
def test_profile_with_invalid_machine_is_rejected_or_uses_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    if text.startswith("config: 5"):
        assert load_machine(tmp_path)[0] == MachineConfig()
        return
    with pytest.raises(UserError, match="fix:"):
        load_machine(tmp_path)


def test_experiment_without_a_file_is_the_demo_with_machine_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    experiment = load_experiment({"machine": {"launcher": "mpiexec", "ranks_per_node": "2"}, "name": "demo"})
    assert experiment.name == "demo"
    assert experiment.runs
    assert experiment.machine.ranks == 2


def test_default_ranks_depend_on_strategy_and_launcher():
    machine = load_experiment({"machine": {"launcher": "mpiexec", "strategy": "dp"}}).machine
    assert machine.ranks is None
    assert machine.ranks_on(num_dies=2, num_clusters=8) == 8
    assert load_experiment({"machine": {"launcher": "mpiexec"}}).machine.ranks_on(num_dies=2, num_clusters=8) == 2
    assert load_experiment({"machine": {"strategy": "dp"}}).machine.ranks == 1


def test_codec_band_groups_must_match_source_bands_and_tile_size() -> None:
    content = yaml.safe_load((ROOT / "config" / "experiments" / "sentinel2-all-bands.yaml").read_text())
    codec, known = content["codecs"]["sd-vae-groups"], content["datasets"]["sentinel2"]["source"]["bands"]
    assert load(content).codecs["sd-vae-groups"].channels(len(known)) == 20
    assert {band for group in codec["bands"] for band in group} == set(known)
    for group, words in ((["B01"] * 3, r"lacks B10[\s\S]*source.bands"), (["B10", "B10", "B13"], "has B13")):
        with pytest.raises(UserError, match=rf"codecs.sd-vae-groups.bands {words}"):
            load(content | {"codecs": {"sd-vae-groups": codec | {"bands": [*codec["bands"][:4], group]}}})
    codec["downsampling_factor"] = 48
    with pytest.raises(UserError, match="not a multiple of 96"):
        load(content)


def test_updated_settings_are_validated() -> None:
    run = RunConfig(dataset="a", steps=100)
    changed = run.updated(steps=200, ema={"decay": 0.5})
    assert (changed.steps, changed.ema.decay, changed.dataset, run.steps) == (200, 0.5, "a", 100)
    for change, words in (
        ({"stepz": 1}, "stepz: Extra inputs"),
        ({"steps": 0}, "steps: Input should be"),
        ({"lr_schedule": "trapezoid", "warmup_steps": 100}, "exceed `steps` 100"),
    ):
        with pytest.raises(UserError, match=words):
            run.updated(**change)
