"""`dithc init` lays out a project, from a checkout and from an installed wheel."""

import filecmp
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dithc.cli import main
from dithc.cli.experiment.init import CONTENTS
from dithc.engine import native
from dithc.engine.native import loading

ROOT = Path(__file__).parents[2]


def test_project_has_the_files_of_the_checkout(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "new/project")]) == 0
    for name in CONTENTS:
        if (ROOT / name).is_file():
            assert filecmp.cmp(ROOT / name, tmp_path / "new/project" / name, shallow=False)
        else:
            compared = filecmp.dircmp(ROOT / name, tmp_path / "new/project" / name)
            assert [*compared.left_only, *compared.right_only, *compared.diff_files] == []
    assert (tmp_path / "new/project/cluster/config.yaml").is_file()


def test_existing_project_is_rejected_and_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/mine.yaml").write_text("name: mine")
    assert main(["init", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["config"]
    assert "already contains a project" in capsys.readouterr().err


# The kernels are built by the installation; here cmake only copies that library. Torch's allocator is optional.
BUILD = """
import runpy, shutil, subprocess, sys
from pathlib import Path

def run(line, **options):
    if "--build" in line:
        shutil.copy(library, Path(line[line.index("--build") + 1], "_kernels.so"))

library = sys.argv.pop()
subprocess.run = run
sys.argv[0] = "setup.py"
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.unit("wheel")
def test_wheel_works_outside_a_checkout(tmp_path: Path) -> None:
    """Build the wheel, install it without its dependencies, and plan the demo in a new project."""
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    for name in run("git", "ls-files", folder=ROOT).splitlines():
        if not name.startswith(("tests/", "docs/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-c", BUILD, "-q", "bdist_wheel", "-d", str(wheels), loading.LIBRARY]
    run(*map(str, build), folder=source, environment={"CC": "false", "CXX": "false"})
    (wheel,) = wheels.glob("dithc-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env"))
    python = tmp_path / "env/bin/python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")}))
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), str(wheel))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    code = "import dithc, dithc.engine.native as n; print(dithc.__file__, n.library() is not None)"
    assert run(str(python), "-c", code).split() == [str(packages / "dithc/__init__.py"), "True"]
    run(str(python), "-m", "dithc", "init", str(tmp_path / "project"))
    line = ["snakemake", "--profile", "profiles/local", "--configfile", "config/experiments/demo.yaml", "-n", "--quiet"]
    environment = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    run(str(python), "-m", *line, folder=tmp_path / "project", environment=environment)


def run(*line: str, folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    variables = os.environ | (environment or {})
    done = subprocess.run(line, cwd=folder or "/", env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
