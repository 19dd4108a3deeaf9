"""The box of a killed test ends completely, and other boxes keep running."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.slurm.box import OURS

ROOT = Path(__file__).parent.parent.parent
OWNER = f"import sys, pathlib; sys.path.insert(0, {str(ROOT)!r}); from tests.slurm.box import keeper"
OWNER += "; kept = keeper(pathlib.Path(sys.argv[1])); print(flush=True); sys.stdin.read()"


def test_daemons_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    daemons = []
    for name in ("mine", "other"):
        folder = tmp_path / f"{OURS}-{name}"
        folder.mkdir()
        daemon = shutil.copy(shutil.which("sleep") or "", folder / "munged")
        daemons.append(subprocess.Popen([daemon, "600"], cwd=folder, start_new_session=True))
    mine, other = daemons
    line = [sys.executable, "-c", OWNER, str(tmp_path / f"{OURS}-mine")]
    try:
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"\n"
            assert mine.poll() is None
            owner.kill()
        assert mine.wait(timeout=60) != 0
        assert other.poll() is None
        until = time.monotonic() + 60
        while (tmp_path / f"{OURS}-mine").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait()
