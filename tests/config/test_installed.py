"""Settings of installed packages are read, rejected and hashed like built-in settings."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dithc.config import Experiment, load
from dithc.log import UserError
from dithc.runs import Manifest, digest
from tests.brought import HERE, Last, bring

ALL: dict[str, dict[str, str]] = {
    "samplers": {
        "last": f"{HERE}:Last",
        "follow": f"{HERE}:Follow",
        "ddim": f"{HERE}:Last",
        "odd": f"{HERE}:Means",
        "shadowing": f"{HERE}:Shadowing",
        "raising": f"{HERE}:Raising",
    },
    "codecs": {"folded": f"{HERE}:Folded"},
    "extractors": {"means": f"{HERE}:Means"},
    "conditions": {"doubled": f"{HERE}:Doubled"},
}


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(tmp_path, monkeypatch, **ALL)


def content(*, sampler: Any = "last", predict: str = "noise", **changed: dict[str, Any]) -> dict[str, Any]:
    tiles = {"title": "A set", "source": {"kind": "gaofen2", "path": "scenes"}, "tiles": {"size": 32}, "codec": "c"}
    tiles |= {"rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 9}, "conditions": [{"kind": "doubled"}]}
    model = {"preset": "DiT-S/4", "learn_sigma": False}
    return {
        "datasets": {"d": tiles},
        "codecs": {"c": {"kind": "folded", "latent_channels": 16} | changed.get("codec", {})},
        "runs": {"r": {"dataset": "d", "model": model, "objective": {"predict": predict}}},
        "extractors": {"f": {"kind": "means"} | changed.get("extractor", {})},
        "evaluations": {"e": {"run": "r", "extractor": "f", "steps": 10, "sampler": sampler}},
    }


def refused(*said: str, **settings: Any) -> None:
    with pytest.raises(UserError) as error:
        load(content(**settings))
    for text in said:
        assert text in str(error.value)


def spec(experiment: Experiment, stage: str, name: str) -> dict[str, Any]:
    return Manifest.spec_of(experiment, stage, name)


def test_settings_of_packages_are_read_by_their_own_classes_and_written_as_they_were() -> None:
    for sampler in ("last", {"kind": "last", "share": 0.5}):
        experiment = load(content(sampler=sampler))
        read = experiment.evaluations["e"].sampler
        assert isinstance(read, Last)
        assert read.share == (0.0 if sampler == "last" else 0.5)
        assert load(experiment.model_dump(mode="json")) == experiment
    assert str(load(content(sampler={"kind": "last", "share": 0.5})).evaluations["e"].sampler) == "last share 0.5"


def test_faults_in_settings_of_packages_are_told_with_their_keys() -> None:
    refused("evaluations.e.sampler.share: ", "less than or equal to 1", sampler={"kind": "last", "share": 2})
    refused("evaluations.e.sampler.shares: unknown key", sampler={"kind": "last", "shares": 0})
    refused("evaluations.e.sampler.share: ", "nan", sampler={"kind": "last", "share": float("nan")})
    refused("codecs.c.spoilt: ", codec={"spoilt": "some"})
    refused("extractors.f: ", "'lost' is neither built in nor", "means (mine 1.0)", extractor={"kind": "lost"})
    refused("codecs.c: ", "'lost' is neither built in nor", "pip install", codec={"kind": "lost"})


def test_what_an_entry_point_names_has_to_be_of_its_group() -> None:
    refused("'odd' of mine 1.0", "Means", "a subclass of dithc's InstalledSampler", sampler="odd")


def test_whatever_a_check_of_a_package_raises_is_a_fault_of_the_package() -> None:
    refused(
        "'raising' of mine 1.0",
        "fails in a validator of its settings",
        "KeyError: 0.5",
        sampler={"kind": "raising", "share": 0.5},
    )


def test_setting_with_the_name_of_what_all_extensions_have_is_refused() -> None:
    refused("'shadowing' of mine 1.0", "words", sampler="shadowing")


def test_built_in_sampler_is_not_replaced_by_one_of_its_name() -> None:
    assert load(content(sampler="ddim")).evaluations["e"].sampler == "ddim"
    refused("evaluations.e.sampler: ", sampler={"kind": "ddim", "share": 0.5})


def test_sampler_has_to_solve_for_what_the_network_predicts() -> None:
    refused("evaluations.e.sampler follow does not fit", sampler="follow")
    refused("evaluations.e.sampler last does not fit", predict="flow")
    assert load(content(sampler="follow", predict="flow"))


def test_bad_combinations_with_other_settings_are_refused() -> None:
    given = content()
    given["evaluations"]["e"]["order"] = 2
    with pytest.raises(UserError, match="`order` applies to the samplers"):
        load(given)
    given = content()
    given["evaluations"]["e"]["times"] = [999]
    with pytest.raises(UserError, match="last needs 10"):
        load(given)


@pytest.mark.parametrize(("stage", "name"), [("sample", "e"), ("features", "f"), ("latents", "d"), ("tiles", "d")])
def test_package_version_and_settings_are_in_what_decides_a_result(
    stage: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = spec(load(content()), stage, name)
    assert '"package": "mine", "version": "1.0"' in str(before).replace("'", '"')
    assert spec(load(content()), stage, name) == before
    monkeypatch.setattr("sys.path", [one for one in sys.path if "site-mine" not in one])
    bring(tmp_path, monkeypatch, version="1.1", **ALL)
    assert digest(spec(load(content()), stage, name)) != digest(before)


def test_settings_count_whatever_their_names_and_paths_do_not(tmp_path: Path) -> None:
    plain = spec(load(content()), "sample", "e")
    assert spec(load(content(sampler={"kind": "last"})), "sample", "e") == plain
    for changed in ({"share": 0.5}, {"search": 3}):
        assert spec(load(content(sampler={"kind": "last"} | changed)), "sample", "e") != plain
    there = spec(load(content(extractor={"path": str(tmp_path)})), "features", "f")
    assert there == spec(load(content(extractor={"path": "elsewhere"})), "features", "f")
