"""Tests of sampling with conditions in units of the tiles."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from dithc.config import load
from dithc.core.logging import UserError
from dithc.data.tiles.condition_maps import MODEL
from dithc.engine.comm import Group
from dithc.model.embeddings import ConditionEmbedder
from dithc.sample import sample
from tests.sample.conftest import CLASSES, ROWS, images_of, train_small, write_latents, write_tiles


@pytest.fixture
def conditional(tmp_path: Path) -> dict[str, Path]:
    """Create a run with place, season and view on tiles that have these; return the manifests."""
    tiles = write_tiles(tmp_path / "tiles", conditions=MODEL[:5])
    values = np.random.default_rng(1).normal(size=(ROWS, 5)).astype(np.float32)
    conditions = {"columns": {"conditions": values}, "condition_widths": {"place": 3, "season": 2}}
    latents = write_latents(tmp_path / "latents", **conditions)
    checkpoint = train_small(tmp_path, latents, steps=6, conditions=["season", "place", "view"])
    return {"tiles": tiles, "latents": latents, "checkpoint": checkpoint}


def test_network_receives_the_conditions_of_an_evaluation(
    conditional: dict[str, Path], job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Tensor] = []
    forward = ConditionEmbedder.forward
    monkeypatch.setattr(ConditionEmbedder, "forward", lambda self, y: given.append(y) or forward(self, y))
    settings = {"weights": "raw", **conditional}
    places = {"south": {"place": [0.0, -90.0]}, "east": {"place": [90.0, 0.0]}, "none": {}}
    images = {}
    for name, conditions in places.items():
        one = job(name, conditions=conditions, **settings)
        sample(one, Group())
        images[name] = images_of(one)
        labels, numbers = given[-1][:, 0].tolist(), given[-1][:, 1:].numpy()
        expected = {"south": [0, 0, -1], "east": [0, 1, 0], "none": [np.nan] * 3}[name]
        view = [1.0] + [0.0] * 7  # the orientation of the tiles
        np.testing.assert_allclose(numbers, [[np.nan, np.nan, *expected, *view]] * len(numbers), atol=1e-6)
        assert set(labels) <= {0.0, 2.0, CLASSES}
        assert CLASSES in labels  # of guidance
    assert len({one.tobytes() for one in images.values()}) == 3
    with pytest.raises(UserError, match="condition sun of an evaluation"):
        sample(job("sun", conditions={"sun": [30.0, 180.0]}, **settings), Group())


def test_conditions_of_an_evaluation_and_of_clouds_are_checked_with_the_configuration() -> None:
    dataset = {"title": "A", "codec": "c", "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 1}}
    dataset |= {"source": {"kind": "geotiff", "path": "x", "units": "dn", "bands": ["R", "G", "B"]}}

    def experiment(conditions: list[str], evaluation: dict[str, Any], **run: Any) -> None:
        parts = {"datasets": {"a": dataset}, "codecs": {"c": {"kind": "pixel"}}, "extractors": {}}
        parts["extractors"] = {"e": {"kind": "squeezenet", "path": "x"}}
        parts["runs"] = {"r": {"dataset": "a", "conditions": conditions, **run}}
        load(parts | {"evaluations": {"v": {"run": "r", "extractor": "e", "conditions": evaluation}}})

    experiment(["place", "season"], {"season": [200]})
    flow = {"objective": {"prediction_type": "flow"}, "model": {"learn_sigma": False}}
    for problem, *given in (
        ("the conditions of runs.r with values are: place", ["place", "view"], {"gsd": [10]}),
        ("with values are: none", ["view"], {"gsd": [10]}),
        ("always have the orientation", ["view"], {"view": [1]}),
        ("requires `tiles.masks: true`", ["cloud"], {}),
        ("names a condition twice", ["sun", "sun"], {}),
    ):
        with pytest.raises(UserError, match=problem):
            experiment(*given)
    with pytest.raises(UserError, match="always the same"):
        experiment(["view"], {}, augment="none")
    with pytest.raises(UserError, match="masked_training requires masks"):
        experiment([], {}, masked_training={})
    groups = {"one": {"bands": ["R"]}}
    for problem, run in (
        ("require separate levels", {}),
        ("leave at least one band", {"band_groups": {"all": {"bands": ["R", "G", "B"]}}} | flow),
        ("name a band twice", {"band_groups": groups | {"two": {"bands": ["R", "G"]}}}),
        (
            "does not generate its band_groups one",
            {"band_groups": {"one": {"bands": ["R"], "role": "condition"}}} | flow,
        ),
    ):
        with pytest.raises(UserError, match=problem):
            experiment([], {}, **{"band_groups": groups} | run)
    with pytest.raises(UserError, match="hidden_share` has no effect"):
        experiment([], {}, masked_training={"hidden_share": 0.5})
