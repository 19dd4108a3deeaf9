"""A manifest contains the commit of the checkout, and no commit outside a checkout."""

import subprocess
from pathlib import Path

import pytest

from dithc.core.artifacts import Manifest, code_version

ROOT = Path(__file__).parents[3]


def git(*arguments: str, cwd: Path) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", *author, *arguments], cwd=cwd, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_commit_equals_git_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, linked = tmp_path / "tree", tmp_path / "linked"
    tree.mkdir()
    for folder, package in ((tree, tree / "dithc"), (linked, linked / "dithc")):
        monkeypatch.setattr(code_version, "PACKAGE", package)
        code_version.commit.cache_clear()
        assert code_version.commit() == ""
        if folder == tree:
            git("init", "-q", cwd=tree)
            git("commit", "-q", "--allow-empty", "-m", "one", cwd=tree)
        else:
            git("worktree", "add", "-q", "-b", "other", str(linked), cwd=tree)
            git("commit", "-q", "--allow-empty", "-m", "two", cwd=linked)
        expected = git("rev-parse", "HEAD", cwd=folder)
        for change in (["pack-refs", "--all"], ["checkout", "-q", "--detach"]):
            code_version.commit.cache_clear()
            assert code_version.commit() == expected[:12]
            git(*change, cwd=folder)
        code_version.commit.cache_clear()
        assert code_version.commit() == expected[:12]
    code_version.commit.cache_clear()


def test_commit_is_not_part_of_the_code_version() -> None:
    assert "commit" not in Manifest.code_here()
