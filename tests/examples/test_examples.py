"""Tests of the examples: they run, print the documented output, are short, and are listed in the README."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dithc.config import load
from dithc.core.artifacts import CheckpointStore
from dithc.diffusion import Schedule, sample
from dithc.diffusion.sampler_check import DEVIATION, MEAN, SHAPE, exact_noise
from tests.plugin_packages import install_example
from tests.ranks import needs_launcher

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py")) + sorted(EXAMPLES.glob("*/*.py"))
RUN = [path for path in SCRIPTS if "__main__" in path.read_text()]
PACKAGES = ("custom_sampler", "custom_dataset")
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 80


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.iterdir()) if path.name != "__pycache__"])
def test_example_is_linked_from_readme(name: str) -> None:
    assert f"(examples/{name})" in README


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.name)
def test_example_prints_usage(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in ((["--help"], 0), (["-x"], 2), ([], 2)):
        if arguments or "FOLDER" in path.read_text():
            monkeypatch.setattr(sys, "argv", [str(path), *arguments])
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(path), run_name="__main__")
            assert ended.value.code == status
            assert "".join(capsys.readouterr()).startswith(f"usage: {path.name}")


@pytest.mark.parametrize("name", PACKAGES)
def test_package_experiment_configuration_round_trips(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_example(name, tmp_path, monkeypatch)
    experiment = load(EXAMPLES / name / "experiment.yaml")
    assert load(experiment.model_dump(mode="json")) == experiment


@pytest.mark.slow
def test_custom_sampler_equals_ddim_and_improves_with_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "custom_sampler"))
    plms = importlib.import_module("dithc_plms").Plms
    schedule = Schedule.linear()
    start = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0))

    def draw_samples(kind: object) -> torch.Tensor:
        return sample(
            kind,  # type: ignore[arg-type]
            denoise=exact_noise(schedule),
            schedule=schedule,
            steps=25,
            shape=SHAPE,
            noise=lambda _: start,
        )

    kept = schedule.alpha_bar[-1].item()  # without noise, normal data keep their quantile along the path
    exact = MEAN + DEVIATION * (start - kept**0.5 * MEAN) / (kept * DEVIATION**2 + 1 - kept) ** 0.5
    missed = [float((draw_samples(plms(kind="plms", memory=memory)) - exact).abs().mean()) for memory in (1, 2, 3)]
    assert missed[0] > 4 * missed[1] > 4 * missed[2]
    torch.testing.assert_close(draw_samples(plms(kind="plms", memory=1)), draw_samples("ddim"), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_custom_conditioning_controls_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    requested, got = importlib.import_module("custom_conditioning").main()
    assert torch.corrcoef(torch.stack([requested, got]))[0, 1] > 0.95
    assert (got - requested).abs().max() < 0.5


@pytest.mark.slow
def test_resumed_loop_reproduces_the_images_of_an_uninterrupted_loop(tmp_path: Path) -> None:
    code = (
        "from custom_loop import main; import sys, torch; "
        "first, second, full = (main(f'{sys.argv[1]}/{name}', steps) for name, steps in (('a', 20), ('a', 60), ('b', 60))); "
        "assert first.shape == (16, 1, 8, 8) and torch.equal(second, full) and not torch.equal(first, second)"
    )
    done = run(["-c", code, str(tmp_path)])
    assert done.stdout.count("step 50: loss") == 2


@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_external_model_trains_on_two_ranks_and_resumes_at_the_last_step(tmp_path: Path) -> None:
    launch = ["-m", "dithc", "launch", "--ranks", "2", "--", str(EXAMPLES / "external_model_two_ranks.py")]
    _, ended, whole = (
        run([*launch, str(tmp_path / name), steps]) for name, steps in (("a", "10"), ("a", "30"), ("b", "30"))
    )
    assert "continuing from step 10" in ended.stderr
    assert "zero1: 2 ranks" in whole.stderr
    assert CheckpointStore(tmp_path / "a").steps() == [10, 30]
    found, logged = (dict(re.findall(r"^step (\d+): (.*)$", done.stdout, re.MULTILINE)) for done in (ended, whole))
    assert sorted(found) == ["20", "30"]
    assert float(logged["30"].split()[1].rstrip(",")) < float(logged["10"].split()[1].rstrip(","))
    assert "HCOps" in whole.stdout or {step: logged[step] for step in found} == found  # backends are re-measured


def run(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES)])}
    line = [sys.executable, *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return done
