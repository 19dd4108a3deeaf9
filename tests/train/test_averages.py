"""Tests of length averages: stored content, independence of jobs, and no change without them."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dithc.config import training
from dithc.core.artifacts import CheckpointStore, Manifest
from dithc.core.posthoc_ema import decay_at_step
from dithc.engine.comm import Group
from dithc.train import export, train
from dithc.train.job import DONE
from dithc.train.optimizer.ema import Ema
from dithc.train.optimizer.optimizer import Optimizer
from tests.train.conftest import hashes, store_of

LENGTHS = [0.05, 0.1]
EVERY = {"ema": {"decay": 0.9, "stds": LENGTHS}, "checkpoint_every": 1, "keep_every": 1}


@pytest.mark.slow
def test_stored_averages_match_the_recursion_over_step_weights(job):
    one = job(**EVERY)
    assert train(one, Group()) == DONE
    folders = [store_of(one).open(step).folder for step in range(7)]
    weights = [load_file(folder / CheckpointStore.WEIGHTS["raw"]) for folder in folders]
    for length in LENGTHS:
        first = load_file(folders[0] / CheckpointStore.average_file(length))
        assert all(torch.equal(first[name], value) for name, value in weights[0].items())
        for name in weights[0]:
            average = torch.zeros_like(weights[0][name], dtype=torch.float64)
            for step in range(1, 7):
                average += (1 - decay_at_step(step, length=length)) * (weights[step][name].double() - average)
                found = load_file(folders[step] / CheckpointStore.average_file(length))[name]
                # Three roundings per step, of numbers as large as the largest weight so far.
                bound = 3 * step * 2**-24 * max(float(weights[at][name].abs().max()) for at in range(step + 1))
                assert float((found.double() - average).abs().max()) <= bound, (name, step)


@pytest.mark.slow
def test_ema_lengths_add_files_without_changing_the_checkpoint(job, tmp_path):
    whole, plain = job("a", until=4, ema=EVERY["ema"]), job("plain", until=4, ema={"decay": 0.9})
    assert [train(one, Group()) for one in (whole, plain)] == [DONE] * 2
    found, rest = hashes(whole), hashes(plain)
    assert found.keys() - rest.keys() == {"ema-0.05.safetensors", "ema-0.1.safetensors"}
    assert all(found[path] == value for path, value in rest.items())
    assert store_of(plain).open(4).meta["ema"] == {"decay": 0.9, "warmup": True}
    assert "lengths [0.05, 0.1]" in Manifest.read(whole.paths.out).summary["ema_note"]
    assert "lengths" not in Manifest.read(plain.paths.out).summary["ema_note"]
    export(whole.paths.out, weights="ema", layout="safetensors", out=tmp_path / "out.safetensors")
    exponential, exported = load_file(store_of(whole).open(4).weights("ema")), load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(exponential[name], value) for name, value in exported.items())


def test_length_averages_are_counted_moved_and_updated_without_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    ema = Ema(model, training.EmaConfig(decay=0.5, stds=LENGTHS))
    assert sum(value.numel() for value in ema.tensors()) == 3 * sum(value.numel() for value in model.parameters())
    moved: list[str] = []
    ema.relocate(lambda name, value: moved.append(name) or value.clone())
    assert {name.removesuffix(".0.weight") for name in moved if name.endswith("0.weight")} == {
        "ema",
        "ema-0.05",
        "ema-0.1",
    }
    model[1](torch.ones(1, 4)).sum().backward()
    optimizer = Optimizer.of_run(model, training.RunConfig(dataset="none"))
    for step in (1, 2):
        with torch.no_grad():
            model[0].weight.add_(1.0)
        optimizer.update(step, ema=ema)
    for average in ema.length_averages:
        # after the first step it equals the weights; the second step contributes its share
        expected = model[0].weight.detach() - decay_at_step(2, length=average.length)
        torch.testing.assert_close(average.state["0.weight"], expected)
