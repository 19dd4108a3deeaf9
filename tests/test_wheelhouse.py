"""Tests of the check of a wheel folder before installation."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def check_wheels(folder: Path) -> subprocess.CompletedProcess[str]:
    line = ["make", "--no-print-directory", "check-wheelhouse", f"WHEELS={folder}"]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


def assert_rejected(folder: Path, message: str) -> None:
    done = check_wheels(folder)
    assert done.returncode != 0
    assert message in done.stdout


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheel house"
    folder.mkdir()
    shutil.copy(ROOT / "requirements.lock", folder)
    (folder / "one-1-py3-none-any.whl").write_bytes(b"wheel")
    write_sums(folder)
    return folder


def write_sums(folder: Path) -> None:
    paths = [folder / "one-1-py3-none-any.whl", folder / "requirements.lock"]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths]
    (folder / "SHA256SUMS").write_text("".join(sums))


def test_intact_folder_passes(wheels: Path) -> None:
    done = check_wheels(wheels)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_folder_without_sums_is_rejected(wheels: Path) -> None:
    (wheels / "SHA256SUMS").unlink()
    assert_rejected(wheels, "SHA256SUMS is missing")
    assert_rejected(wheels, "fix: run make wheelhouse on a machine with network")


def test_damaged_or_missing_wheel_is_rejected(wheels: Path) -> None:
    wheel = wheels / "one-1-py3-none-any.whl"
    wheel.write_bytes(b"wheal")
    assert_rejected(wheels, "fix: copy the folder again")
    wheel.unlink()
    assert_rejected(wheels, "missing or damaged")


def test_folder_for_a_different_lock_is_rejected(wheels: Path) -> None:
    lock = wheels / "requirements.lock"
    lock.write_text(lock.read_text().replace("torch==", "torch==1."))
    write_sums(wheels)
    assert_rejected(wheels, "belongs to another requirements.lock")
