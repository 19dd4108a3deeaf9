"""A team's runs and barriers let nothing through, with threads that spin or sleep, also under ThreadSanitizer."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"
SOURCES = [KERNELS / "team/team.c", KERNELS / "test/team_runs.c"]
MAIN = """
#include <stdlib.h>
#include "test/cases.h"
int main(int count, char **words) {
    return count != 5 ? 9 : hc_test_team(atoi(words[1]), atoi(words[2]), atoll(words[3]), atoi(words[4]));
}
"""
# Threads, clusters, nanoseconds of spinning before a thread sleeps, and 0 or how many threads another runtime lends.
OWN = [(1, 1, 1, 0), (2, 1, 100_000, 0), (2, 2, 1, 0), (3, 2, 1, 0), (5, 2, 1000, 0), (8, 3, 1, 0), (8, 8, 100, 0)]
LENT = [(1, 1, 1, 1), (2, 1, 100_000, 2), (3, 2, 1, 3), (3, 1, 1, 2), (5, 2, 1000, 5)]
TEAMS = [*OWN, *LENT]


def build(folder: Path, *flags: str, source: str = "") -> Path:
    if not shutil.which("cc"):
        pytest.skip("no C compiler (cc)")
    (folder / "main.c").write_text(MAIN)
    sources = [folder / "main.c", *SOURCES]
    if source:
        (folder / "team.c").write_text(source)
        sources[1] = folder / "team.c"
    command = [
        "cc",
        "-std=c11",
        "-O1",
        "-g",
        *flags,
        f"-I{KERNELS}",
        f"-I{KERNELS / 'include'}",
        f"-I{KERNELS / 'team'}",
    ]
    program = folder / "team"
    done = subprocess.run(
        [*command, *map(str, sources), "-o", str(program), "-lpthread"], capture_output=True, text=True
    )
    if done.returncode and "sanitize" in " ".join(flags):
        pytest.skip(f"no ThreadSanitizer: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, team: tuple[int, int, int, int]) -> "subprocess.CompletedProcess[str]":
    # ThreadSanitizer's fixed map of memory does not go with every layout that the system draws.
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    return subprocess.run([*fixed, str(program), *map(str, team)], capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_runs_and_barriers_let_nothing_through(tmp_path):
    program = build(tmp_path)
    for team in TEAMS:
        assert run(program, team).returncode == 0, team


@pytest.mark.slow
def test_threads_never_race(tmp_path):
    program = build(tmp_path, "-fsanitize=thread")
    for team in TEAMS:
        done = run(program, team)
        assert done.returncode == 0, (team, done.stderr[-4000:])


def test_a_barrier_that_lets_through_is_seen(tmp_path):
    source = SOURCES[0].read_text()
    waits = "    wait_while(&place->phase, phase, spin_nanoseconds);\n"
    assert waits in source
    broken = build(tmp_path, source=source.replace(waits, "    (void)phase, (void)spin_nanoseconds;\n"))
    assert run(broken, (3, 1, 1, 0)).returncode == 1
    assert run(broken, (3, 1, 1, 3)).returncode == 1
