"""Tests of commit samples: one in `ONE_OF` of each family, reproducible, and covering all tests over many commits."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import ONE_OF, ROOT, commit_of, select_members

FAMILIES = """
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize("number", range(33))
def test_many(number):
    pass

@pytest.mark.sampled("pair")
def test_left():
    pass

@pytest.mark.sampled("pair")
def test_right():
    pass

@pytest.mark.sampled
def test_only():
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.slow
def test_slower():
    pass

@pytest.mark.alternates("home", "north")
def test_north():
    pass

@pytest.mark.alternates("home", "south")
@pytest.mark.parametrize("number", range(2))
def test_south(number):
    pass

def test_always():
    pass
"""


def run_families(folder: Path, *arguments: str) -> tuple[list[str], str]:
    """Return the sorted names of the executed tests of the families above, and the output."""
    (folder / "test_families.py").write_text(FAMILIES)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-v", *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "PASSED" in line]
    return sorted(line.partition("::")[2].split()[0] for line in lines), done.stdout


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (2, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_sample_is_one_in_32_of_a_family_and_at_least_one(size: int, expected: int) -> None:
    members = [f"test[{number}]" for number in range(size)]
    found = select_members(members, seed="a commit")
    assert len(found) == expected
    assert select_members(members[::-1], seed="a commit") == found


def test_family_members_are_drawn_uniformly_over_commits() -> None:
    members = [f"test[{number}]" for number in range(2 * ONE_OF)]
    draws = [select_members(members, seed=f"commit {number}") for number in range(3200)]
    counts = {member: sum(member in draw for draw in draws) for member in members}
    assert all(60 < count < 140 for count in counts.values()), counts  # 100 expected; 40 is four standard deviations


@pytest.mark.slow
def test_sample_is_equal_in_one_process_and_in_workers(tmp_path: Path) -> None:
    if not commit_of("HEAD"):
        pytest.skip("no git, or no commit here")
    single, output = run_families(tmp_path, "--sample", "HEAD")
    assert f"drawn by {commit_of('HEAD')[:12]}" in output
    assert {"test_always", "test_only"} <= set(single)
    assert sum(name.startswith("test_slow") for name in single) == 1, (
        "one in 32 of the tests without a family, at least one"
    )
    assert sum(name.startswith("test_many") for name in single) == 2
    assert sum(name in ("test_left", "test_right") for name in single) == 1
    homes = [name.partition("[")[0] for name in single if name.startswith(("test_north", "test_south"))]
    assert homes in (["test_north"], ["test_south"] * 2), "one alternative, and of it the sample"
    workers, output = run_families(tmp_path, "--sample", "HEAD", "-n", "2")
    assert workers == single
    short, _ = run_families(tmp_path, "--sample", "HEAD", "--short")
    assert sum(name.startswith("test_slow") for name in short) == 1


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--sample", "no-such-commit")])
def test_all_tests_run_without_a_commit(arguments: tuple[str, ...], tmp_path: Path) -> None:
    found, output = run_families(tmp_path, *arguments)
    assert len(found) == 42
    assert ("sample: none, because commit no-such-commit does not exist here" in output) == bool(arguments)
