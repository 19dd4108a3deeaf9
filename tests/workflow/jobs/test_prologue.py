"""`machine.prologue`: its lines run before the command of every rule, and a failing line ends the job with an error."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dithc.config import ExperimentConfig
from dithc.workflow.jobs.resources import JobResources

MODULES = Path(__file__).parents[3] / "profiles" / "modules.sh"
MODULE = """module() {
  [ "$1" != load ] || [ "$2" = gcc ] || { echo "no module $2" >&2; return 1; }
  PATH="%s:$PATH"
}
"""


def run(prologue: str | None, command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    experiment = ExperimentConfig.model_validate({"machine": {"prologue": prologue}})
    script = JobResources(experiment, cores=1).prologue + f"set -euo pipefail; {command}"
    bash = [shutil.which("bash") or "bash", "-c", script]
    return subprocess.run(bash, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_prologue_lines_run_before_the_command(tmp_path: Path) -> None:
    (tmp_path / "site lines.sh").write_text('export SITE=here\n[ -n "$UNSET" ] || true\n')
    done = run(str(tmp_path / "site lines.sh"), "echo $SITE", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")
    assert run(None, "exit 75", tmp_path).returncode == 75
    assert run(str(tmp_path / "site lines.sh"), "exit 75", tmp_path).returncode == 75


@pytest.mark.parametrize("lines", ["module load nothing\necho on\n", "false\necho on\n", "exit 0\n", None])
def test_failing_prologue_line_ends_the_job_with_an_error(tmp_path: Path, lines: str | None) -> None:
    path = tmp_path / "site.sh"
    if lines is not None:
        path.write_text(lines)
    done = run(str(path), "echo done", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"machine.prologue {path}" in done.stderr
    assert "fix:" in done.stderr


def test_example_prologue_loads_modules_and_requires_mpiexec(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    no_programs = str(tmp_path / "nothing")  # an installed mpiexec would hide that the module has none
    mpiexec = tmp_path / "bin" / "mpiexec"
    (tmp_path / "profile").write_text(MODULE % (tmp_path / "bin") + f"source {MODULES}\n")
    done = run(str(tmp_path / "profile"), "true", tmp_path, PATH=no_programs)
    assert done.returncode == 2, "the example must stop if `module load` provides no mpiexec"
    mpiexec.write_text("#!/bin/sh\n")
    mpiexec.chmod(0o755)
    done = run(str(tmp_path / "profile"), "echo $DITHC_MPIEXEC", tmp_path, PATH=no_programs)
    assert done.stdout.splitlines()[-1] == str(mpiexec), done.stderr
