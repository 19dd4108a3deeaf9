"""A manifest contains the commit of the checkout, and no commit outside a checkout."""

import subprocess
from pathlib import Path

import pytest

from dithc.core.artifacts import Manifest, code_version

ROOT = Path(__file__).parents[3]


def git(*words: str, cwd: Path) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *who, *words], cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()


def test_commit_is_the_one_that_git_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, linked = tmp_path / "tree", tmp_path / "linked"
    tree.mkdir()
    for place, package in ((tree, tree / "dithc"), (linked, linked / "dithc")):
        monkeypatch.setattr(code_version, "PACKAGE", package)
        code_version.commit.cache_clear()
        assert code_version.commit() == ""
        if place == tree:
            git("init", "-q", cwd=tree)
            git("commit", "-q", "--allow-empty", "-m", "one", cwd=tree)
        else:
            git("worktree", "add", "-q", "-b", "other", str(linked), cwd=tree)
            git("commit", "-q", "--allow-empty", "-m", "two", cwd=linked)
        expected = git("rev-parse", "HEAD", cwd=place)
        for change in (["pack-refs", "--all"], ["checkout", "-q", "--detach"]):
            code_version.commit.cache_clear()
            assert code_version.commit() == expected[:12]
            git(*change, cwd=place)
        code_version.commit.cache_clear()
        assert code_version.commit() == expected[:12]
    code_version.commit.cache_clear()


def test_commit_does_not_decide_what_was_made_by_the_same_code() -> None:
    assert "commit" not in Manifest.code_here()
