"""The schema rejects invalid configurations before the first job, and docs/config.md is current."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dithc.config import Experiment, Machine, experiment_of, load
from dithc.config.generate import schema_json
from dithc.config.nearest import sections
from dithc.config.reference import page
from dithc.config.training import Run
from dithc.log import UserError

ROOT = Path(__file__).parent.parent.parent
EXPERIMENTS = sorted((ROOT / "config" / "experiments").glob("*.yaml"))


def demo() -> dict[str, Any]:
    content = yaml.safe_load((ROOT / "config" / "experiments" / "demo.yaml").read_text())
    assert isinstance(content, dict)
    return content


def codec_of(**settings: Any) -> dict[str, Any]:
    made = {"kind": "kl-vae", "trained_on": "landscape", **settings}
    return {"codecs": {**demo()["codecs"], "c": made}}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_is_valid_and_named_as_its_file(path: Path) -> None:
    assert load(path).name == path.stem


def test_the_experiments_of_the_issue_are_there() -> None:
    assert {"demo", "real-sample", "imagenet", "gaofen2", "sentinel2"} <= {path.stem for path in EXPERIMENTS}


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
    models = {(one.place, one.model): one.model for one in sections(Experiment)}.values()
    assert text.count("\n| `") == sum(len(model.model_fields) for model in models)


def judged(**settings: Any) -> dict[str, Any]:
    """Return an evaluation of the demo's pre-training run."""
    return {"evaluations": {"x": {"run": "pretrain", "extractor": "landscape-classifier", **settings}}}


SIZE_OF_TILES = demo()["datasets"]["landscape"]["tiles"]["size"]


def judge(source: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return a classifier for the tiles of a source."""
    dataset = demo()["datasets"]["landscape"] | {"source": source}
    return {
        "datasets": demo()["datasets"] | {"x": dataset},
        "extractors": demo()["extractors"] | {"x": {"kind": "classifier", "trained_on": "x", **settings}},
    }


def guided(run: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """Return a run with trained guidance."""
    return {"runs": {"a": {"dataset": "landscape", **(run or {}), "guide": settings}}}


SENTINEL2 = demo()["datasets"]["landscape"] | {
    "source": {"kind": "sentinel2", "synthetic": {"scenes": 1, "size": 510}},
    "rendering": {"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3},
}


ONE_CLASS: list[dict[str, Any]] = [
    {"kind": "image-folder", "path": "pictures", "classes": "one"},
    {"kind": "image-folder", "synthetic": {"classes": 1}},
    {"kind": "gaofen2", "path": "scenes", "bands": ["R", "G", "B"]},
]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": 1}, ["colour", "unknown key"]),
        ({"runs": {"a": {"dataset": "nowhere"}}}, ["runs.a.dataset", "nowhere", "landscape"]),
        ({"runs": {"a": {"dataset": "landscape", "init": "b"}}}, ["runs.a.init", "'b'"]),
        ({"runs": {"a": {"dataset": "landscape", "steps": 10, "segment": 3}}}, ["segment", "does not divide"]),
        ({"runs": {"a": {"dataset": "landscape", "lr": "quick"}}}, ["runs.a.lr", "quick"]),
        ({"name": "Upper Case"}, ["name", "Upper Case"]),
        ({"machine": {"launcher": "none", "ranks_per_node": 2}}, ["launcher", "one rank"]),
        ({"machine": {"launcher": "mpiexec", "ranks_per_node": 5}}, ["global_batch", "5 ranks"]),
        ({"extractors": {"x": {"kind": "inception"}}}, ["extractors.x", "path"]),
        (
            {"extractors": {"x": {"kind": "inception", "path": "x.pth", "defects": True}}},
            ["extractors.x", "`defects`", "leave it out"],
        ),
        ({"machine": {"memory": {"file_folder": "/scratch"}}}, ["machine.memory", "file_gib"]),
        ({"runs": {"a": {"dataset": "landscape", "lr": -1e-4}}}, ["runs.a.lr", "greater than 0"]),
        ({"runs": {"a": {"dataset": "landscape", "lr": float("nan")}}}, ["runs.a.lr", "finite number"]),
        ({"runs": {"a": {"dataset": "landscape", "clip": 0}}}, ["runs.a.clip", "greater than 0"]),
        ({"runs": {"a": {"dataset": "landscape", "steps": True}}}, ["runs.a", "`steps` is True"]),
        (
            {"runs": {"a": {"dataset": "landscape", "steps": 9_000_000, "segment": 1}}},
            ["segment", "more than 10000 jobs"],
        ),
        ({"runs": {"a": {"dataset": "landscape", "model": {"num_heads": 5}}}}, ["hidden_size 384", "num_heads 5"]),
        (
            {"runs": {"a": {"dataset": "landscape", "model": {"hidden_size": 40, "num_heads": 4, "position": "rope"}}}},
            ["runs.a.model", "are 10 wide", "not a multiple of 4", "`position: sincos`"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "model": {"qk_norm": 1.5}}}},
            ["runs.a.model.qk_norm", "true or false"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "model": {"norm": True}}}},
            ["runs.a.model", "`norm` is True"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "model": {"norm": "rms"}, "init_file": "DiT.pt"}}},
            ["runs.a", "original blocks", "norm rms, mlp gelu", "a start run by `init`"],
        ),
        (
            {
                "runs": {
                    "a": {"dataset": "landscape"},
                    "b": {"dataset": "landscape", "init": "a", "model": {"preset": "ModernDiT-S/2"}},
                }
            },
            [
                "runs.b.model has blocks of norm rms, mlp swiglu",
                "runs.a, its `init`, of norm layer",
                "use the same settings",
            ],
        ),
        (
            {"evaluations": {"x": {"run": "pretrain", "at": 121, "extractor": "landscape-classifier"}}},
            ["evaluations.x.at is step 121", "runs.pretrain does not keep"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "objective": {"predict": "flow"}}}},
            ["runs.a", "`model.learn_sigma: false`"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "objective": {"predict": "v"}, "init_file": "DiT.pt"}}},
            ["runs.a", "`init_file` contains a network that predicts noise", "v: set it to noise"],
        ),
        (
            {
                "runs": {
                    "a": {"dataset": "landscape"},
                    "b": {"dataset": "landscape", "init": "a", "objective": {"predict": "v"}},
                }
            },
            ["runs.b.objective.predict is v", "runs.a", "predicts noise", "set both to the same value"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "objective": {"predict": "flow", "weight": "min-snr"}}}},
            ["runs.a.objective", "min-snr", "leave it out"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "objective": {"mean": 0.5}}}},
            ["runs.a.objective", "`mean`", "`times: logit-normal`"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "objective": {"gamma": 3.0}}}},
            ["runs.a.objective", "`gamma`", "`weight: min-snr`"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "objective": {"times": "logit-normal", "std": 0.0}}}},
            ["runs.a.objective.std", "greater than or equal to 0.01"],
        ),
        (
            guided(by="start"),
            ["runs.a", "`guide.by: start` requires initial weights", "`init_file`, or set `by: self`"],
        ),
        (guided({"label_dropout": 0.0}, by="self"), ["runs.a", "`label_dropout` 0", "0.1"]),
        (guided(by="self", guidance=1.0), ["runs.a.guide.guidance", "greater than 1"]),
        (guided(by="self", interval=[0.5, 0.5]), ["runs.a.guide", "`interval` is not ascending"]),
        (guided(by="other"), ["runs.a.guide.by", "self", "start"]),
        (
            guided(by="self")
            | {"evaluations": {"x": {"run": "a", "extractor": "landscape-classifier", "guidance": 2}}},
            ["evaluations.x.guidance 2.0 would guide twice", "leave `guidance` out"],
        ),
        (
            {
                "runs": {
                    "b": {"dataset": "landscape", "label_dropout": 0.0},
                    **guided({"init": "b"}, by="start")["runs"],
                }
            },
            ["runs.a.guide.by: start", "prediction of runs.b without a label", "`label_dropout` is 0"],
        ),
        (
            {"datasets": demo()["datasets"] | {"landscape": SENTINEL2}, **guided(by="self")},
            ["runs.a.guide.by: self", "all tiles of datasets.landscape have one label", "`by: start`"],
        ),
        *(
            (judge(source), ["extractors.x", "all tiles of datasets.x have one class", "`defects: true`"])
            for source in ONE_CLASS
        ),
        ({"runs": {"a": {"dataset": "landscape", "betas": [0.9, 1.0]}}}, ["runs.a.betas.1", "less than 1"]),
        ({"runs": {"a": {"dataset": "landscape", "betas": [0.0, 0.9]}}}, ["runs.a.betas.0", "greater than 0"]),
        ({"runs": {"a": {"dataset": "landscape", "betas": [0.9]}}}, ["runs.a.betas.1", "required"]),
        ({"runs": {"a": {"dataset": "landscape", "optimizer": {"kind": "lion"}}}}, ["runs.a.optimizer.kind", "muon"]),
        (
            {"runs": {"a": {"dataset": "landscape", "optimizer": {"momentum": 0.9}}}},
            ["runs.a.optimizer", "`momentum` has no effect", "`kind: muon`"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "optimizer": {"iterations": 6}}}},
            ["runs.a.optimizer", "`iterations` has no effect", "`kind: muon`"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "optimizer": {"kind": "muon", "iterations": 0}}}},
            ["runs.a.optimizer.iterations", "greater than or equal to 1"],
        ),
        ({"runs": {"a": {"dataset": "landscape", "lr_schedule": "linear"}}}, ["runs.a.lr_schedule", "cosine"]),
        (
            {"runs": {"a": {"dataset": "landscape", "decay_share": 0.5}}},
            ["runs.a", "`decay_share` has no effect", "constant"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "steps": 10, "warmup_steps": 10, "lr_schedule": "cosine"}}},
            ["runs.a", "`warmup_steps` 10", "cosine", "`steps` 10"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "steps": 10, "warmup_steps": 9, "lr_schedule": "trapezoid"}}},
            ["runs.a", "`warmup_steps` 9", "(2 steps at least)", "`steps` 10"],
        ),
        (
            {"runs": {"a": {"dataset": "landscape", "augment": "dihedral"}}},
            ["runs.a.augment dihedral", "datasets.landscape.views is 2", "set it to 8"],
        ),
        ({"datasets": {"landscape": {**demo()["datasets"]["landscape"], "views": 4}}}, ["views", "2 or 8"]),
        (judged(sampler="ddim", order=2), ["evaluations.x", "`order` applies to the samplers", "ddim"]),
        (judged(sampler="unipc", order=4), ["evaluations.x.order", "1, 2 or 3"]),
        (
            judged(steps=2, times=[1000, 5], sampler="heun"),
            ["evaluations.x", "2 timesteps", "`steps` is 2", "heun needs 1"],
        ),
        (judged(steps=2, times=[999, 5], sampler="euler"), ["evaluations.x", "euler must start at 1000"]),
        (judged(steps=2, times=[1000, 0], sampler="euler"), ["evaluations.x", "end above 0"]),
        (judged(steps=2, times=[1001, 5], sampler="euler"), ["evaluations.x.times", "less than or equal to 1000"]),
        (judged(steps=3, times=[999, 5]), ["evaluations.x", "`times` has 2 timesteps and `steps` is 3"]),
        (judged(steps=3, times=[999, 5, 5]), ["evaluations.x", "`times` are not descending"]),
        (judged(steps=2, times=[1000, 5]), ["evaluations.x", "must be at most 999"]),
        (judged(guidance=2, guidance_interval=[0.6, 0.2]), ["starts at 0.6 and ends at 0.2"]),
        (judged(guidance=2, guidance_interval=[0.6]), ["evaluations.x.guidance_interval", "at least 2 items"]),
        (
            judged(guidance=2, guidance_interval=[0.6, 1.2]),
            ["evaluations.x.guidance_interval", "less than or equal to 1"],
        ),
        (judged(at="codec", epsilon_scaling=0.1), ["`epsilon_scaling` applies to predicted noise, and `at` is codec"]),
        (judged(guidance_interval=[0.2, 0.6]), ["`guidance_interval` requires a `guidance` other than 1"]),
        (judged(guide="start"), ["`guide` requires `guidance` above 1; with 1.0"]),
        (judged(guide="start", guidance=2, at="start"), ["`guide: start` requires weights after the first step"]),
        (judged(guide="start", guidance=2), ["evaluations.x.guide is start", "runs.pretrain has neither"]),
        (judged(ema=0.07, sampler="heun"), ["evaluations.x.ema 0.07", "runs.pretrain does not keep", "`ema.lengths`"]),
        (judged(metrics=["fid"]), ["evaluations.x.metrics", "precision-recall"]),
        (judged(metrics=["bands", "bands"]), ["evaluations.x", "`metrics` has bands twice"]),
        (judged(triplets=[["R", "G"]]), ["evaluations.x.triplets"]),
        (judged(triplets=[["R", "G", "B"]] * 2), ["evaluations.x", "`triplets` has R+G+B twice"]),
        (
            judged(sampler="euler", triplets=[["B12", "B11", "B99"]]),
            ["evaluations.x.triplets has B12, B11, B99", "datasets."],
        ),
        (judged(images=1), ["evaluations.x", "`images` is 1", "at least two"]),
        (
            judged(sampler="euler", size=SIZE_OF_TILES // 2),
            ["evaluations.x.size", "is smaller than the tiles of runs.pretrain"],
        ),
        (
            judged(sampler="euler", size=4096),
            ["evaluations.x.size 4096 is larger than the tiles", "`windows: {overlap: 0.25}`"],
        ),
        (judged(sampler="euler", size=2049, windows={}), ["evaluations.x.size 2049 is not a multiple of", "use 2048"]),
        (judged(size=1 << 17, windows={}), ["evaluations.x.size", "less than or equal to 65536"]),
        (judged(windows={"overlap": 0.5}), ["evaluations.x", "require the `size`"]),
        (judged(size=2048, windows={"overlap": 0}), ["evaluations.x.windows", "leave seams", "`shift: true`"]),
        (judged(size=2048, windows={"overlap": 1}), ["evaluations.x.windows.overlap", "less than or equal to 0.9"]),
        (judged(size=2048, windows={}, at="codec"), ["evaluations.x", "`at` is codec"]),
        (judged(size=2048, windows={}, metrics=["bands"]), ["evaluations.x", "a scene (`windows`) has no score"]),
        (
            judged(sampler="euler", pipefusion={"pipefusion_parallel_degree": 7}),
            ["evaluations.x.pipefusion.pipefusion_parallel_degree is 7", "the network has 6 blocks", "at most 6"],
        ),
        (
            judged(sampler="euler", pipefusion={"num_pipeline_patch": 65}),
            ["evaluations.x.pipefusion.num_pipeline_patch is 65", "an image has 64 tokens", "at most 64"],
        ),
        (
            judged(sampler="euler", pipefusion={"pipefusion_parallel_degree": 4})
            | {"machine": {"launcher": "mpiexec", "ranks_per_node": 2}},
            [
                "evaluations.x.pipefusion.pipefusion_parallel_degree is 4",
                "2 ranks are started",
                "`num_pipeline_patch: 4`",
            ],
        ),
        (judged(pipefusion={}), ["evaluations.x.pipefusion", "has no effect"]),
        (judged(pipefusion={"num_pipeline_patch": 2}, at="codec"), ["evaluations.x", "`at` is codec"]),
        (judged(ema=0.07, weights="raw"), ["evaluations.x", "`weights` is raw"]),
        (judged(ema=0.07, at="start"), ["evaluations.x", "`at` is start"]),
        (judged(ema=0.3), ["evaluations.x.ema", "less than or equal to 0.28"]),
        (
            {"runs": {"a": {"dataset": "landscape", "ema": {"lengths": [0.1, 0.05]}}}},
            ["runs.a.ema", "`lengths` are not ascending"],
        ),
        ({"runs": {"a": {"dataset": "landscape", "ema": {"lengths": [0.1]}}}}, ["runs.a.ema.lengths", "at least 2"]),
        ({"seed": -1}, ["seed", "greater than or equal to 0"]),
        ({"results": "r$(touch pwned)"}, ["results", "contains $"]),
        ({"store": ""}, ["store", "at least 1 character"]),
        ({"title": "a\nb"}, ["title", "one line"]),
        ({"__use_yte__": True}, ["__use_yte__", "unknown key"]),
        ({"machine": {"memory": {"fast_budget_gib": 0}}}, ["machine.memory.fast_budget_gib", "greater than 0"]),
        (
            {"codecs": {**demo()["codecs"], "c": {"kind": "kl-vae", "trained_on": "x"}}},
            ["codecs.c.trained_on", "landscape"],
        ),
        (codec_of(equivariance=1.5), ["equivariance", "less than or equal to 1"]),
        (codec_of(latent_noise=-0.1), ["latent_noise", "greater than or equal to 0"]),
        (codec_of(equivariance=0.6, latent_noise=0.5), ["codecs.c", "their sum is at most 1", "0.6"]),
        (codec_of(equivariance=0.1, factor=32), ["codecs.c.equivariance", "lower `factor`"]),
    ],
)
def test_mistake_is_named_with_its_key_and_fix(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load({**demo(), **change})
    for word in [*words, "got:", "expected:", "fix:"]:
        assert word in str(caught.value)


def test_a_classifier_of_one_class_learns_defects_and_folders_of_a_user_may_hold_more() -> None:
    accepted = [judge(source, defects=True) for source in ONE_CLASS]
    accepted += [judge({"kind": "image-folder", "path": "pictures"}), judge({"kind": "image-folder", "synthetic": {}})]
    for change in accepted:
        assert "x" in load({**demo(), **change}).extractors


def test_guide_needs_a_fine_tuning_of_what_saw_dropped_labels() -> None:
    own = {"dataset": "landscape"}
    runs = {"seen": own, "unseen": {**own, "label_dropout": 0.0}}
    runs |= {f"after-{name}": {**own, "init": name} for name in ("seen", "unseen")}
    runs["forgot"] = {**own, "init": "seen", "label_dropout": 0.0}
    evaluation = {"extractor": "landscape-classifier", "guidance": 2, "guide": "start"}
    load({**demo(), "runs": runs, "evaluations": {"x": {**evaluation, "run": "after-seen"}}})
    for run, words in {
        "seen": "requires a fine-tuning run",
        "after-unseen": "only then this is learned",
        "forgot": "only then this is learned",
    }.items():
        with pytest.raises(UserError, match=words):
            load({**demo(), "runs": runs, "evaluations": {"x": {**evaluation, "run": run}}})
    with pytest.raises(UserError, match="with dropped labels"):
        load({**demo(), "runs": runs, "evaluations": {"x": {**evaluation, "guide": None, "run": "forgot"}}})


def test_length_that_the_kept_checkpoints_cannot_make_is_refused_with_how_many_would_do() -> None:
    def lengthy(ema: float, **run: Any) -> Any:
        own = {"dataset": "landscape", "steps": 8000, "checkpoint_every": 1, "ema": {"lengths": [0.05, 0.1]}}
        evaluation = {"run": "a", "ema": ema, "extractor": "landscape-classifier"}
        return load({**demo(), "runs": {"a": own | run}, "evaluations": {"x": evaluation}})

    for ema in (0.05, 0.07, 0.1):
        assert lengthy(ema)  # only the last checkpoint
    for ema, every in ((0.15, 1000), (0.25, 1000), (0.02, 500)):
        with pytest.raises(UserError, match=rf"evaluations.x.ema {ema}[\s\S]*the 1 kept checkpoint[\s\S]*keep_every"):
            lengthy(ema)
        assert lengthy(ema, keep_every=every)
    with pytest.raises(UserError, match=r"runs\.a has 8000 up to this step: at most 100"):
        lengthy(0.07, keep_every=1)
    made = lengthy(0.07, keep_every=3000, segment=4000)
    assert made.snapshots_of(made.evaluations["x"]) == [3000, 6000, 8000]
    assert made.snapshots_of(made.evaluations["x"].model_copy(update={"at": 6000})) == [3000, 6000]
    assert made.snapshots_of(made.evaluations["x"].model_copy(update={"ema": None})) == []


def test_memory_of_a_run_counts_its_averages() -> None:
    plain = Run.model_validate({"dataset": "x"})
    more = Run.model_validate({"dataset": "x", "ema": {"lengths": [0.05, 0.1]}})
    assert (
        more.state_bytes - plain.state_bytes == more.snapshot_bytes - plain.snapshot_bytes == 8 * plain.model.parameters
    )


def test_runs_that_start_from_each_other_are_refused() -> None:
    runs = {"a": {"dataset": "landscape", "init": "b"}, "b": {"dataset": "landscape", "init": "a"}}
    with pytest.raises(UserError, match="circular"):
        load({**demo(), "runs": runs, "evaluations": {}})


@pytest.mark.parametrize(
    ("predict", "sampler", "fix"),
    [
        ("noise", "euler", "choose another sampler"),
        ("v", "heun", "choose another sampler"),
        ("flow", "ddpm", "choose euler or heun"),
        ("flow", "dpm-solver", "choose euler or heun"),
    ],
)
def test_sampler_that_does_not_solve_for_what_is_predicted_is_refused(predict: str, sampler: str, fix: str) -> None:
    run = {"dataset": "landscape", "model": {"learn_sigma": False}, "objective": {"predict": predict}}
    evaluation = {"run": "a", "sampler": sampler, "extractor": "landscape-classifier"}
    content = {**demo(), "runs": {"a": run}, "evaluations": {"e": evaluation}}
    with pytest.raises(UserError, match=rf"evaluations.e.sampler {sampler}[\s\S]*{predict}: {fix}"):
        load(content)
    assert load({**content, "evaluations": {"e": evaluation | {"at": "codec"}}})  # no images are sampled
    fitting = "heun" if predict == "flow" else "ddim"
    assert load({**content, "evaluations": {"e": evaluation | {"sampler": fitting}}})


def test_undeclared_offset_of_plain_sentinel2_files_is_refused() -> None:
    source = {"kind": "sentinel2-array", "path": "x", "bands": ["B02"], "units": "dn"}
    content = demo()
    content["datasets"]["sentinel2"]["source"] = source
    with pytest.raises(UserError, match="`offset` must be declared"):
        load(content)


def test_generated_sentinel2_is_of_a_size_in_which_its_grids_end_together() -> None:
    content = demo()
    for name in ("gaofen2", "sentinel2"):  # the first has one grid
        content["datasets"][name]["source"]["synthetic"]["size"] = 382
        if name == "gaofen2":
            load(content)
    with pytest.raises(
        UserError, match=r"datasets\.sentinel2\.source[\s\S]*`synthetic.size` is 382[\s\S]*use 378 or 384"
    ):
        load(content)
    content["datasets"]["sentinel2"]["source"]["synthetic"]["size"] = 384
    load(content)


def test_source_is_either_files_or_generated() -> None:
    content = demo()
    content["datasets"]["gaofen2"]["source"] = {"kind": "gaofen2"}
    with pytest.raises(UserError, match="exactly one"):
        load(content)


def test_missing_broken_and_empty_files_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("runs: [unclosed")
    with pytest.raises(UserError, match="invalid YAML"):
        load(broken)
    broken.write_text("")
    with pytest.raises(UserError, match="empty"):
        load(broken)


def test_faults_are_said_with_the_line_of_the_file_that_has_them(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text("seed: 1\n\nstore: a\n")
    other.write_text("# over it\nseed: -1\n")
    with pytest.raises(UserError, match=r"seed \(line 2, column 1\): "):
        load(other)
    demo_file = ROOT / "config" / "experiments" / "demo.yaml"
    with pytest.raises(UserError, match=r"seed \(line 2, column 1 of configuration file .*other.yaml\)"):
        experiment_of([demo_file, one, other])
    other.write_text("seed: 1\nmachine:\n  nodes: 1\n  nodes: 2\n")
    with pytest.raises(UserError, match=r"other.yaml, line 4, column 3: .*\n.*duplicate key `nodes`, first in line 3"):
        load(other)


@pytest.mark.parametrize(
    "text",
    ["config: 5\nmachine: 1", "config: ['machine=[']", "config: ['machine=a']", "config: ['machine={a: 1}']", "["],
)
def test_a_profile_that_says_no_machine_is_refused_or_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    if text.startswith("config: 5"):
        assert Machine.of_profile(tmp_path)[0] == Machine()
        return
    with pytest.raises(UserError, match="fix:"):
        Machine.of_profile(tmp_path)


def test_workflow_without_runs_is_the_demo_on_the_profile_s_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    experiment = experiment_of({"machine": {"launcher": "mpiexec", "ranks_per_node": "2"}, "name": "demo"})
    assert experiment.name == "demo"
    assert experiment.runs
    assert experiment.machine.ranks == 2


def test_ranks_follow_from_the_strategy_where_nobody_gives_them():
    machine = experiment_of({"machine": {"launcher": "mpiexec", "strategy": "dp"}}).machine
    assert machine.ranks is None
    assert machine.ranks_on(num_dies=2, num_clusters=8) == 8
    assert experiment_of({"machine": {"launcher": "mpiexec"}}).machine.ranks_on(num_dies=2, num_clusters=8) == 2
    assert experiment_of({"machine": {"strategy": "dp"}}).machine.ranks == 1


def test_groups_of_a_codec_have_every_band_of_the_source_and_no_other() -> None:
    path = ROOT / "config" / "experiments" / "sentinel2-all-bands.yaml"
    content = yaml.safe_load(path.read_text())
    codec = content["codecs"]["sd-vae-groups"]
    known = content["datasets"]["sentinel2"]["source"]["bands"]
    assert len(known) == 13
    assert sorted({band for group in codec["bands"] for band in group}) == sorted(known)
    codec["bands"][4] = ["B01"] * 3
    with pytest.raises(UserError, match=r"codecs.sd-vae-groups.bands lacks B10[\s\S]*source.bands"):
        load(content)
    codec["bands"][4] = ["B10", "B10", "B13"]
    with pytest.raises(UserError, match=r"codecs.sd-vae-groups.bands has B13"):
        load(content)


def test_tiles_and_the_channels_of_latents_are_those_that_a_codec_of_others_says() -> None:
    content = yaml.safe_load((ROOT / "config" / "experiments" / "sentinel2-all-bands.yaml").read_text())
    experiment = load(content)
    assert experiment.codecs["sd-vae-groups"].channels(13) == 20
    content["codecs"]["sd-vae-groups"]["factor"] = 48
    with pytest.raises(UserError, match="not a multiple of 96"):
        load(content)
