"""Tests of the documentation site: it builds without warnings, and its links and pages exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_site_builds_without_warnings_and_links_every_page(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install 'dithc[docs]'")
    line = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "trees"), "docs"]
    done = subprocess.run([*line, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "site/index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (tmp_path / "site" / name).exists()
        assert name == "index.html" or f'href="{name}"' in index
    commands = (tmp_path / "site/generated/commands.html").read_text()
    assert re.search(r"usage: dithc sample ", commands)
