"""Tests of hostile configurations: rejected on reading, in four lines with a line number, without side effects."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

from dithc.config import load
from dithc.log import UserError
from tests.attack.configurations import COMMANDS, DEMO, PWNED, Trial, demo, trials, written
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
        pytest.fail(f"taken: {trial.what}")
    finally:
        assert sorted(folder.iterdir()) == before, trial.what
        if file.is_symlink() or file.is_socket() or file.is_fifo():
            file.unlink()
        elif file.exists():
            file.unlink() if file.is_file() else file.rmdir()
    heads = [line.split(":")[0].strip() for line in text.splitlines()]
    for head in ("got", "expected", "fix"):
        assert heads.count(head) >= 1, f"{trial.what}: {text}"
    assert str(file) in text, trial.what
    assert len(text) < 20_000, trial.what
    assert not trial.has_line or "line " in text, f"{trial.what}: {text}"


def attack_all(seed: int, count: int, folder: Path) -> None:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"seed {seed}: no answer within {SECONDS} s: {trial.what}")

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


def test_what_the_attack_starts_from_is_taken(folder: Path) -> None:
    written(demo())(folder / "valid.yaml")
    assert load(folder / "valid.yaml") == load(DEMO)


@pytest.mark.parametrize("seed", [1])
@pytest.mark.slow
def test_hostile_configurations_are_refused_with_file_and_line(folder: Path, seed: int) -> None:
    attack_all(seed, 150, folder)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_more_hostile_configurations_are_refused(folder: Path, seed: int) -> None:
    attack_all(seed, 500, folder)


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(Path(sys.executable).parent / "dithc"), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3])
def test_the_command_line_says_it_without_a_traceback(folder: Path, seed: int) -> None:
    for trial in itertools.islice(trials(seed), 8, 10):
        trial.make(folder / "hostile.yaml")
        done = run(folder, "tiles", "--config", "hostile.yaml", "--dataset", "a", "--scenes", "b", "--out", "c")
        assert (done.returncode, "Traceback" in done.stderr, "fix:" in done.stderr) == (2, False, True), done.stderr
        path = folder / "hostile.yaml"
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    "key", ["results", "store", "machine.prologue", "bench.automem.folder", "bench.simulate.machine"]
)
@pytest.mark.parametrize("command", COMMANDS[:10])
def test_a_command_in_a_path_never_runs_under_the_workflow_engine(folder: Path, key: str, command: str) -> None:
    project = make_project(folder / "project")
    content: object = command
    for word in reversed(key.split(".")):
        content = {word: content}
    written(content)(project / "hostile.yaml")
    done = snakemake(
        project, "--profile", "profiles/local", "--configfile", "config/experiments/demo.yaml", "hostile.yaml"
    )
    assert done.returncode != 0
    assert (
        f"{key} (line 1, column 1 of configuration file hostile.yaml)" in done.stdout or f"{key} (line" in done.stdout
    ), done.stdout
    assert not list(folder.rglob(PWNED)), done.stdout
    assert not (project / "results").exists()


@pytest.mark.slow
def test_spaces_parentheses_and_titles_of_any_words_work_in_jobs(folder: Path) -> None:
    project = make_project(folder / "project")
    title = f'it\'s {{S}} "quoted" $(touch {PWNED}) {{wildcards.run}}'
    odd = {"results": "my results (1)", "store": "a store, of = mine #1", "title": title}
    written(odd)(project / "odd.yaml")
    files = ("--configfile", "reduced.yaml", "odd.yaml")
    target = "my results (1)/demo/tiles/gaofen2/manifest.json"
    done = snakemake(project, target, "--profile", "profiles/local", *files)
    assert done.returncode == 0, done.stdout[-4000:]
    assert (project / target).is_file()
    planned = snakemake(project, "-n", "--profile", "profiles/local", *files)  # also with the report's title
    assert planned.returncode == 0, planned.stdout[-4000:]
    assert not list(folder.rglob(PWNED))


@pytest.mark.slow
def test_a_key_that_is_twice_in_a_file_is_refused_by_the_workflow_too(folder: Path) -> None:
    project = make_project(folder / "project")
    (project / "twice.yaml").write_text("seed: 1\ntitle: a\nseed: 2\n")
    done = snakemake(
        project, "-n", "--profile", "profiles/local", "--configfile", "config/experiments/demo.yaml", "twice.yaml"
    )
    assert done.returncode != 0
    assert "twice.yaml, line 3" in done.stdout, done.stdout
    assert "duplicate key `seed`, first in line 1" in done.stdout
