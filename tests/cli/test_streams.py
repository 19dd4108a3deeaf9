"""Programs without standard streams, or with ASCII-only outputs, end normally."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.runs import Manifest

CLOSED = (
    "import os, sys; [os.close(int(n)) for n in sys.argv[1]]; os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
DITHC = ("-c", "from dithc.cli import main; import sys; sys.exit(main())")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Write a manifest with an intact file, in a folder with a non-ASCII name."""
    folder = tmp_path / "Höhe ≥ 日本"
    folder.mkdir()
    (folder / "scores.bin").write_bytes(b"scores")
    path = folder / "manifest.json"
    Manifest(
        stage="codec",
        name="höhe",
        spec={},
        files=Manifest.entries(folder, [folder / "scores.bin"]),
        numbers={"loss": 1.5},
    ).write(path)
    return path


def run(closed: str, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", CLOSED, closed, *DITHC, *words],
        env={**os.environ, **variables},
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("closed", ["0", "12", "012"])
@pytest.mark.slow
def test_closed_streams_change_no_verdict(manifest: Path, tmp_path: Path, closed: str) -> None:
    out = tmp_path / "found.json"
    done = run(closed, "verify", str(manifest), "--json", str(out))
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(out.read_text())  # and no log lines are in it
    assert (found["files"], found["faults"]) == (1, [])
    (manifest.parent / "scores.bin").write_bytes(b"others")
    assert run(closed, "verify", str(manifest)).returncode == 1


@pytest.mark.slow
def test_streams_of_ascii_take_any_text(manifest: Path) -> None:
    for words in (["show", str(manifest)], ["verify", str(manifest.parent)]):
        done = run("", *words, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr.decode()
        assert b"Traceback" not in done.stderr
