"""Tests of `dithc sample` on one and two ranks: equal images."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dithc.sample.shards import SHARD_IMAGES
from tests.ranks import launch_arguments, needs_launcher
from tests.sample.conftest import write_experiment


@pytest.fixture
def arguments(tmp_path, trained_run):
    """Return a function that builds the `dithc sample` arguments for a folder."""
    small = {"num_images": 2 * SHARD_IMAGES + 5, "sampler": "ddim", "steps": 2}
    scene = small | {
        "num_images": 1,
        "image_size": 20,
        "windows": {"overlap": 0.25, "random_shift": True},
        "guidance_scale": 1.5,
    }
    tiny = small | {"num_images": 2, "steps": 1}
    config = write_experiment(tmp_path / "config.yaml", small=small, tiny=tiny, scene=scene)
    given = [f"--{name}={path}" for name, path in trained_run.items()]

    def make(folder: Path) -> list[str]:
        out = folder / "manifest.json"
        start = [sys.executable, "-m", "dithc", "sample", f"--config={config}", "--evaluation=small"]
        return [*start, *given, f"--out={out}", f"--json={folder / 'numbers.json'}"]

    return make


def run(command, *, ranks: int) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DITHC_EXPECTED_RANKS": str(ranks)}
    done = subprocess.run([*launch_arguments(ranks), *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.sampled("several ranks")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_two_ranks_generate_the_scene_of_a_single_rank(arguments, tmp_path):
    folders = tmp_path / "one", tmp_path / "two"
    logs, config = [], tmp_path / "config.yaml"
    content = json.loads(config.read_text())
    for folder, ranks in zip(folders, (1, 2), strict=True):
        config.write_text(json.dumps(content | {"machine": {"sampling": {"window_degree": ranks}}}))
        line = [word.replace("small", "scene") for word in arguments(folder)]
        logs.append(run(line, ranks=ranks).stderr)
    assert "1 group(s) of 2 rank(s) each, windows 2" in logs[1]
    for name in ("shard-00000.npy", "rgb-00000.npy"):
        one, two = (np.load(folder / name) for folder in folders)
        assert one.shape[2:] == (20, 20)
        assert np.array_equal(one, two)


def test_codec_manifest_without_a_trained_codec_is_rejected(arguments, tmp_path, capsys):
    from dithc.cli import main

    command = [*arguments(tmp_path / "x")[3:], f"--codec={tmp_path / 'codec.json'}"]
    assert main(command) == 2
    assert "--codec" in capsys.readouterr().err
    assert main([word.replace("small", "unknown") for word in arguments(tmp_path / "x")[3:]]) == 2


def test_sampling_ranks_connect_with_a_timeout_of_days(arguments, tmp_path, monkeypatch):
    import dithc.engine.comm
    from dithc.cli import main

    waits = []

    def connect(expected, *, timeout_seconds):
        waits.append(timeout_seconds)
        return dithc.engine.comm.Group()

    monkeypatch.setattr("dithc.engine.comm.session.connect_ranks", connect)
    assert main([word.replace("small", "tiny") for word in arguments(tmp_path / "x")[3:]]) == 0
    assert waits[0] >= 2 * 24 * 3600


@pytest.mark.parametrize(
    ("machine", "ranks", "messages"),
    [
        ("", [], ["one rank  <- chosen"]),
        (
            "",
            ["2x2"],
            ["of 4 ranks", "assumed; DITHC_MACHINE_FILE describes others"],
        ),
        ("", ["0"], ["sample: error: --show-plan\n  got:      '0'\n"]),
        ("", ["20000x4"], ["sample: error: --show-plan\n  got:      '20000x4'\n"]),
        ("lx2.yaml", ["16x4"], ["of 64 ranks", "(described: LX2", "without guidance the network has a single branch"]),
    ],
)
def test_show_plan_prints_degrees_without_sampling(arguments, tmp_path, capsys, monkeypatch, machine, ranks, messages):
    from dithc.cli import main

    folder, is_error = tmp_path / "x", "error" in messages[0]
    if machine:
        monkeypatch.setenv("DITHC_MACHINE_FILE", str(Path(__file__).parents[2] / "profiles/machines" / machine))
    assert main([*arguments(folder)[3:], "--show-plan", *ranks]) == (2 if is_error else 0)
    output = capsys.readouterr()
    assert all(message in (output.err if is_error else output.out) for message in messages)
    assert ("DITHC_MACHINE_FILE" in output.out) == (ranks == ["2x2"])
    assert not folder.exists()


@pytest.mark.sampled("several ranks")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_show_plan_on_two_ranks_prints_measured_rates(arguments, tmp_path):
    done = run([*arguments(tmp_path / "x"), "--show-plan"], ranks=2)
    assert done.stdout.count("<- chosen") == 1  # printed by the first rank only
    assert "of 2 ranks" in done.stdout
    assert "measured: a row" in done.stdout
    assert not (tmp_path / "x").exists()
