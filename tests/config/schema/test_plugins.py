"""Settings of installed packages are read, rejected and hashed like built-in settings."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dithc.config import ExperimentConfig, load, stage_spec
from dithc.config.schema.training import CONDITIONS
from dithc.core.artifacts import digest
from dithc.core.logging import UserError
from dithc.data.tiles.condition_maps import GROUPS
from tests.plugin_packages import MODULE, DdimSampler, install_plugin

ALL: dict[str, dict[str, str]] = {
    "samplers": {
        "last": f"{MODULE}:DdimSampler",
        "follow": f"{MODULE}:FlowSampler",
        "ddim": f"{MODULE}:DdimSampler",
        "odd": f"{MODULE}:ChannelMeans",
        "shadowing": f"{MODULE}:ShadowingSampler",
        "raising": f"{MODULE}:FailingSampler",
    },
    "codecs": {"folded": f"{MODULE}:FoldedCodec"},
    "extractors": {"means": f"{MODULE}:ChannelMeans"},
    "conditions": {"doubled": f"{MODULE}:DoubledConditions"},
}


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, monkeypatch, **ALL)


def content(*, sampler: Any = "last", predict: str = "noise", **changed: Any) -> dict[str, Any]:
    tiles = {"title": "A set", "source": {"kind": "gaofen2", "path": "scenes"}, "tiles": {"size": 32}, "codec": "c"}
    tiles |= {"rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 9}, "conditions": [{"kind": "doubled"}]}
    model = {"preset": "DiT-S/4", "learn_sigma": False}
    evaluation = {key: changed[key] for key in ("solver_order",) if key in changed}
    return {
        "datasets": {"d": tiles},
        "codecs": {"c": {"kind": "folded", "latent_channels": 16} | changed.get("codec", {})},
        "runs": {"r": {"dataset": "d", "model": model, "objective": {"prediction_type": predict}}},
        "extractors": {"f": {"kind": "means"} | changed.get("extractor", {})},
        "evaluations": {"e": {"run": "r", "extractor": "f", "steps": 10, "sampler": sampler, **evaluation}},
    }


def spec(experiment: ExperimentConfig, stage: str, name: str) -> dict[str, Any]:
    return stage_spec(experiment, stage, name)


def test_conditions_of_a_run_are_built_in_or_columns_of_a_plugin() -> None:
    assert (*GROUPS, "view") == CONDITIONS
    given = content()
    given["runs"]["r"]["conditions"] = ["season", "doubled_elevation"]
    load(given)
    given["runs"]["r"]["conditions"] = ["seasons"]
    with pytest.raises(UserError, match=r"runs\.r\.conditions has seasons.*did you mean `season`"):
        load(given)


def test_plugin_settings_are_read_by_the_plugin_class_and_round_trip() -> None:
    for sampler in ("last", {"kind": "last", "share": 0.5}):
        experiment = load(content(sampler=sampler))
        read = experiment.evaluations["e"].sampler
        assert isinstance(read, DdimSampler)
        assert read.share == (0.0 if sampler == "last" else 0.5)
        assert load(experiment.model_dump(mode="json")) == experiment
    assert str(load(content(sampler={"kind": "last", "share": 0.5})).evaluations["e"].sampler) == "last share 0.5"


FAULTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"sampler": {"kind": "last", "share": 2}}, ["evaluations.e.sampler.share: ", "less than or equal to 1"]),
    ({"sampler": {"kind": "last", "shares": 0}}, ["evaluations.e.sampler.shares: unknown key"]),
    ({"codec": {"defect": "some"}}, ["codecs.c.defect: "]),
    ({"extractor": {"kind": "lost"}}, ["extractors.f: ", "'lost' is neither built in nor", "means (mine 1.0)"]),
    ({"codec": {"kind": "lost"}}, ["codecs.c: ", "'lost' is neither built in nor", "pip install"]),
    ({"sampler": "odd"}, ["'odd' of mine 1.0", "ChannelMeans", "a subclass of dithc's PluginSampler"]),
    ({"sampler": {"kind": "raising", "share": 0.5}}, ["fails in a validator of its settings", "KeyError: 0.5"]),
    ({"sampler": "shadowing"}, ["'shadowing' of mine 1.0", "words"]),
    ({"sampler": {"kind": "ddim", "share": 0.5}}, ["evaluations.e.sampler: "]),
    ({"sampler": "follow"}, ["evaluations.e.sampler follow does not fit"]),
    ({"predict": "flow"}, ["evaluations.e.sampler last does not fit"]),
    ({"solver_order": 2}, ["`solver_order` applies to the samplers"]),
]


@pytest.mark.parametrize(("settings", "expected"), FAULTS)
def test_faults_in_plugin_settings_are_reported_with_keys(settings: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(UserError) as error:
        load(content(**settings))
    assert [text for text in expected if text not in str(error.value)] == []


def test_plugin_does_not_replace_a_built_in_sampler_and_may_solve_flows() -> None:
    assert load(content(sampler="ddim")).evaluations["e"].sampler == "ddim"
    assert load(content(sampler="follow", predict="flow"))


@pytest.mark.parametrize(("stage", "name"), [("sample", "e"), ("features", "f"), ("latents", "d"), ("tiles", "d")])
def test_package_version_changes_the_digest_of_plugin_stages(
    stage: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = spec(load(content()), stage, name)
    assert '"package": "mine", "version": "1.0"' in str(before).replace("'", '"')
    assert spec(load(content()), stage, name) == before
    monkeypatch.setattr("sys.path", [one for one in sys.path if "site-mine" not in one])
    install_plugin(tmp_path, monkeypatch, version="1.1", **ALL)
    assert digest(spec(load(content()), stage, name)) != digest(before)


def test_plugin_settings_change_the_spec_and_paths_do_not(tmp_path: Path) -> None:
    plain = spec(load(content()), "sample", "e")
    assert spec(load(content(sampler={"kind": "last"})), "sample", "e") == plain
    for changed in ({"share": 0.5}, {"search": 3}):
        assert spec(load(content(sampler={"kind": "last"} | changed)), "sample", "e") != plain
    spec_of_folder = spec(load(content(extractor={"path": str(tmp_path)})), "features", "f")
    assert spec_of_folder == spec(load(content(extractor={"path": "elsewhere"})), "features", "f")
