"""Tests of hostile configurations: rejected on reading, in four lines with a line number, without side effects."""

import itertools
import os
import signal
from pathlib import Path
from types import FrameType

import pytest

from dithc.config import load
from dithc.core.logging import UserError
from tests.attack.configurations import COMMANDS, DEMO, PATHS, PWNED, Trial, demo, trials, yaml_writer
from tests.workflow.conftest import make_project, snakemake

SECONDS = 20  # per trial; each takes less than a tenth of a second on an idle machine


def attack(trial: Trial, folder: Path) -> None:
    file = folder / "hostile.yaml"
    trial.make(file)
    before = sorted(folder.iterdir())
    try:
        load(file)
    except UserError as error:
        text = str(error)
    else:
        pytest.fail(f"taken: {trial.description}")
    finally:
        assert sorted(folder.iterdir()) == before, trial.description
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)
    heads = [line.split(":")[0].strip() for line in text.splitlines()]
    for head in ("got", "expected", "fix"):
        assert heads.count(head) >= 1, f"{trial.description}: {text}"
    assert str(file) in text, trial.description
    assert len(text) < 20_000, trial.description
    assert not trial.has_line or "line " in text, f"{trial.description}: {text}"


def attack_all(seed: int, count: int, folder: Path) -> None:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"seed {seed}: no answer within {SECONDS} s: {trial.description}")

    os.chdir(folder)
    before = signal.signal(signal.SIGALRM, late)
    try:
        for trial in itertools.islice(trials(seed), count):
            signal.alarm(SECONDS)
            attack(trial, folder)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_base_configuration_of_the_attack_is_accepted(folder: Path) -> None:
    yaml_writer(demo())(folder / "valid.yaml")
    assert load(folder / "valid.yaml") == load(DEMO)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 44))])
@pytest.mark.slow
def test_hostile_configurations_are_rejected_with_file_and_line(folder: Path, seed: int) -> None:
    attack_all(seed, 150, folder)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("place", PATHS, ids=".".join)
@pytest.mark.parametrize("command", COMMANDS)
def test_shell_command_in_a_path_is_rejected_without_execution(
    folder: Path, place: tuple[str, ...], command: str
) -> None:
    project = make_project(folder / "project")
    content: object = command
    for key in reversed(place):
        content = {key: content}
    yaml_writer(content)(project / "hostile.yaml")
    done = snakemake(
        project, "--profile", "profiles/local", "--configfile", "config/experiments/demo.yaml", "hostile.yaml"
    )
    assert done.returncode != 0
    assert f"{'.'.join(place)} (line" in done.stdout, done.stdout
    assert not list(folder.rglob(PWNED)), done.stdout
    assert not (project / "results").exists()


@pytest.mark.slow
def test_special_characters_in_paths_and_titles_work_in_jobs(folder: Path) -> None:
    project = make_project(folder / "project")
    title = f'it\'s {{S}} "quoted" $(touch {PWNED}) {{wildcards.run}}'
    settings = {"results": "my results (1)", "store": "a store, of = mine #1", "title": title}
    yaml_writer(settings)(project / "odd.yaml")
    files = ("--configfile", "reduced.yaml", "odd.yaml")
    target = "my results (1)/demo/tiles/sentinel2/manifest.json"
    done = snakemake(project, target, "--profile", "profiles/local", *files)
    assert done.returncode == 0, done.stdout[-4000:]
    assert (project / target).is_file()
    planned = snakemake(project, "-n", "--profile", "profiles/local", *files)  # also with the report's title
    assert planned.returncode == 0, planned.stdout[-4000:]
    assert not list(folder.rglob(PWNED))
