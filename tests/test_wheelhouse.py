"""Tests of the check of a wheel folder before installation."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def look_at(folder: Path) -> subprocess.CompletedProcess[str]:
    line = ["make", "--no-print-directory", "check-wheelhouse", f"WHEELS={folder}"]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheel house"
    folder.mkdir()
    shutil.copy(ROOT / "requirements.lock", folder)
    (folder / "one-1-py3-none-any.whl").write_bytes(b"wheel")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    return folder


def test_whole_folder_passes(wheels: Path) -> None:
    done = look_at(wheels)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_folder_without_sums_is_refused(wheels: Path) -> None:
    (wheels / "SHA256SUMS").unlink()
    done = look_at(wheels)
    assert done.returncode != 0
    assert "SHA256SUMS is missing" in done.stdout
    assert "fix: run make wheelhouse on a machine with network" in done.stdout


def test_damaged_or_missing_wheel_is_refused(wheels: Path) -> None:
    wheel = wheels / "one-1-py3-none-any.whl"
    wheel.write_bytes(b"wheal")
    assert "fix: copy the folder again" in look_at(wheels).stdout
    wheel.unlink()
    done = look_at(wheels)
    assert done.returncode != 0
    assert "missing or damaged" in done.stdout


def test_folder_for_another_lock_is_refused(wheels: Path) -> None:
    lock = wheels / "requirements.lock"
    lock.write_text(lock.read_text().replace("torch==", "torch==1."))
    text = (wheels / "SHA256SUMS").read_text().splitlines()
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    (wheels / "SHA256SUMS").write_text(
        "\n".join(f"{digest}  {lock.name}" if lock.name in one else one for one in text) + "\n"
    )
    done = look_at(wheels)
    assert done.returncode != 0
    assert "belongs to another requirements.lock" in done.stdout
