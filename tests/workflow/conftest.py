"""A project folder to run the workflow in, and one run of the reduced demo that several tests look at."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
REDUCED = Path(__file__).parent / "reduced.yaml"
DEMO = "config/experiments/demo.yaml"


def snakemake(folder: Path, *arguments: str, timeout: int = 1500) -> subprocess.CompletedProcess[str]:
    """Runs Snakemake in a project folder; both outputs are in `stdout`."""
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
    """Snakemake's command line, beside this interpreter."""
    return [str(Path(sys.executable).parent / "snakemake"), *arguments]


def make_project(folder: Path) -> Path:
    """A working folder with the workflow's files as links and the reduced settings."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("Snakefile", "workflow", "config", "profiles"):
        os.symlink(ROOT / name, folder / name)
    os.symlink("profiles/slurm", folder / "cluster")
    shutil.copy(REDUCED, folder / "reduced.yaml")
    return folder


def processes_in(folder: Path) -> list[str]:
    """Command lines of living processes that work in a folder."""
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


LOCAL = ("--profile", "profiles/local", "--configfile", DEMO, "reduced.yaml")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the reduced demo has run to its report."""
    folder = make_project(tmp_path_factory.mktemp("demo") / "project")
    done = snakemake(folder, *LOCAL)
    assert done.returncode == 0, done.stdout[-6000:]
    return folder
