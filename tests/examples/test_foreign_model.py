"""Test of an external model that trains on two ranks, stops and resumes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.runs import Store
from tests.ranks import needs_launcher

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "foreign_model_two_ranks.py"


def launched(folder: Path, steps: int) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "dithc", "launch", "--ranks", "2", "--", str(SCRIPT), str(folder), str(steps)]
    return subprocess.run(line, capture_output=True, text=True, timeout=1200, check=False)


def losses(said: str) -> dict[int, str]:
    """Return loss and gradient in the lines of a script, by step."""
    return {int(step): rest for step, rest in re.findall(r"^step (\d+): (.*)$", said, re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_foreign_model_learns_on_two_ranks_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    begun, ended, whole = (launched(tmp_path / name, steps) for name, steps in (("a", 10), ("a", 30), ("b", 30)))
    for done in (begun, ended, whole):
        assert done.returncode == 0, done.stderr
    assert "continuing from step 10" in ended.stderr
    assert "ZeRO-1: 2 ranks" in whole.stderr
    assert Store(tmp_path / "a").steps() == [10, 30]
    found = losses(ended.stdout)
    assert sorted(found) == [20, 30]
    told = losses(whole.stdout)
    assert float(told[30].split()[1].rstrip(",")) < float(told[10].split()[1].rstrip(","))
    assert "HCOps" in whole.stdout or {step: told[step] for step in found} == found  # backends are re-measured
