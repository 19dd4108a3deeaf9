"""Project folder for the workflow, one shared run of the reduced demo, and fabricated outputs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dithc.config import load_experiment
from dithc.config.load import merge_settings
from dithc.core.artifacts import Manifest
from dithc.core.integrity import dump_checksummed

ROOT = Path(__file__).parent.parent.parent
REDUCED = ROOT / ".test/config/reduced.yaml"
TERMINAL = "terminal.txt"
DEMO = "config/experiments/demo.yaml"
# The second satellite repeats the stages of the first.
LEFT_OUT = "gaofen2"


def snakemake(folder: Path, *arguments: str, timeout: int = 1500) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in a project folder; `stdout` contains both outputs."""
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "snakemake"), *arguments]


def make_project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("Snakefile", "workflow", "config", "profiles"):
        os.symlink(ROOT / name, folder / name)
    os.symlink("profiles/slurm", folder / "cluster")
    reduced = merge_settings(*(yaml.safe_load(path.read_text()) for path in (ROOT / DEMO, REDUCED)))
    for section in ("datasets", "codecs", "runs", "evaluations"):
        reduced[section] = {name: part for name, part in reduced[section].items() if not name.startswith(LEFT_OUT)}
    (folder / "reduced.yaml").write_text(yaml.safe_dump(reduced))
    return folder


def processes_in(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "cwd") == str(folder.resolve()) and (path / "stat").read_text().split()[2] != "Z":
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


LOCAL = ("--profile", "profiles/local", "--configfile", "reduced.yaml")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Project with a finished run of the reduced demo, as by `make demo`; `TERMINAL` contains its output."""
    folder = make_project(tmp_path_factory.mktemp("demo") / "project")
    line = [str(Path(sys.executable).parent / "dithc"), "run", *LOCAL]
    with (folder / TERMINAL).open("w") as log:
        done = subprocess.run(line, cwd=folder, stdout=log, stderr=subprocess.STDOUT, timeout=1500, check=False)
    assert done.returncode == 0, (folder / TERMINAL).read_text()[-6000:]
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Outputs of the reduced demo before its first stage."""
    folder = tmp_path / "results" / "demo"
    folder.mkdir(parents=True)
    experiment = load_experiment([ROOT / DEMO, REDUCED])
    (folder / "config.json").write_text(dump_checksummed(experiment.model_dump(mode="json")))
    return folder


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def finish(folder: Path, *names: str, **numbers: Any) -> None:
    """Write manifests of stages with a duration of 12 seconds."""
    for name in names:
        path = folder / name / "manifest.json" if not name.endswith(".json") else folder / name
        Manifest(stage="any", name=name, spec={}, wall_seconds=12.0, summary=numbers).write(path)
