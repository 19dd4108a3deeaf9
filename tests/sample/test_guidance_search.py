"""Tests of the search of the guidance scale on networks with known errors."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from dithc.cli import main
from dithc.config import training
from dithc.config.schema.evaluations import EvaluationConfig
from dithc.core.integrity import load_checksummed
from dithc.core.logging import UserError
from dithc.diffusion import Objective
from dithc.sample import search_guidance_scale
from dithc.sample.generate import ImageGenerator
from tests.sample.conftest import write_experiment


class Gaussian:
    """Network with the velocity of data N(mean, std^2) by channel: distances in deviations are constant."""

    config = SimpleNamespace(in_channels=3, size=(2, 2), null_label=1, num_tokens=1)
    means = torch.tensor([0.5, -1.0, 0.0]).reshape(3, 1, 1)
    stds = torch.tensor([0.05, 0.1, 0.2]).reshape(3, 1, 1)

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        t = t.reshape(-1, 1, 1, 1) / 1000
        slope = (t - (1 - t) * self.stds**2) / ((1 - t) ** 2 * self.stds**2 + t**2)
        return slope * (x - (1 - t) * self.means) - self.means


def images_of(network: object, evaluation: EvaluationConfig) -> ImageGenerator:
    codec = SimpleNamespace(bound=None, noise_channels=0, decode=lambda x: x, to_rgb=lambda x: x.numpy())
    settings = {
        "classes": np.array([0]),
        "objective": Objective.of(training.ObjectiveConfig(prediction_type="flow")),
        "bf16": False,
    }
    return ImageGenerator(network, codec, evaluation=evaluation, **settings)  # type: ignore[arg-type]


class WrongMean(Gaussian):
    """Network with means that are wrong by one deviation times `error`; guidance by a worse network corrects them."""

    def __init__(self, error: float) -> None:
        self.means = Gaussian.means + error * self.stds


@pytest.mark.slow
@pytest.mark.parametrize(("error", "expected"), [(1.0, 2.0), (0.0, 1.0)])
def test_searched_guidance_scale_compensates_the_network_error(job, monkeypatch, error, expected) -> None:
    """Check that a guide with twice the error needs a scale of 2, and an exact network none."""
    one = job(sampler="heun", steps=60, guidance_scale=1.0, num_images=32)
    images = replace(images_of(WrongMean(error), one.evaluation), guide=WrongMean(2 * error + 0.5 * (error == 0)))
    monkeypatch.setitem(search_guidance_scale.__globals__, "open_images", lambda job, tiles_digest: (images, {}))
    scored_images: list[np.ndarray] = []

    def score(drawn: np.ndarray) -> float:
        scored_images.append(drawn)
        distances = (drawn - Gaussian.means.numpy()) / Gaussian.stds.numpy()
        return float(np.mean(distances) ** 2)

    found = search_guidance_scale(one, score=score, images=256)
    assert found["guidance_scale"] == pytest.approx(expected, abs=0.1)
    assert found["searched"]["after"] <= found["searched"]["before"]
    assert found["trials"] + 2 == len(scored_images)
    assert EvaluationConfig.model_validate(one.evaluation.model_dump() | {"guidance_scale": found["guidance_scale"]})
    scored = images.latents(range(32)).numpy()
    assert not any(
        np.array_equal(scored[0], image) for drawn in (scored_images[0], scored_images[-1]) for image in drawn
    )


def test_codec_evaluation_rejects_the_search(job) -> None:
    with pytest.raises(UserError, match="has no guidance"):
        search_guidance_scale(job(sampler="unipc", steps=3, at="codec"), score=lambda drawn: 0.0, images=2)


def test_search_command_prints_the_setting_and_writes_a_checksummed_result(
    trained_run, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("dithc.cli.evaluation.search_guidance.ranks", lambda experiment, expected: nullcontext())
    evaluation = {"run": "toy", "extractor": "e", "sampler": "dpm-solver", "steps": 2, "num_images": 2}
    config, out = write_experiment(tmp_path / "config.yaml", x=evaluation), tmp_path / "new" / "guidance.json"
    command = [
        "search-guidance",
        "--config",
        str(config),
        "--evaluation",
        "x",
        "--out",
        str(out),
        "--num-samples",
        "16",
    ]
    command += [f"--{name}={path}" for name, path in trained_run.items()]
    real = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    requested: list[int] = []

    class Tiles:
        def __init__(self, folder) -> None: ...
        def rows(self, split: str) -> np.ndarray:
            assert split == "train"
            return np.arange(len(real))

        def rgb(self, rows: np.ndarray) -> np.ndarray:
            requested.extend(rows)
            return real[rows]

    monkeypatch.setattr("dithc.data.Tiles", Tiles)
    assert main(command) == 0
    found = load_checksummed(out.read_text())
    assert capsys.readouterr().out == f"guidance_scale: {found['guidance_scale']}\n"
    assert sorted(requested) == list(range(len(real)))
    assert found["images"] == 16
    command[command.index("16")] = "15"
    assert main(command) == 2
    real = real[:15]
    command[command.index("15")] = "16"
    assert main(command) == 2
    assert "15 in the split train" in capsys.readouterr().err
