"""Runs and barriers of a team are correct, with spinning or sleeping threads, also under ThreadSanitizer."""

from functools import partial

import pytest

from tests.kernels.programs import KERNELS, build, run

SOURCES = ("team/team.c", "test/team_runs.c")
CALL = "hc_test_team(atoi(words[1]), atoi(words[2]), atoll(words[3]), atoi(words[4]))"
build_team = partial(build, SOURCES, CALL)
# Threads, clusters, nanoseconds of spinning before a thread sleeps, and the number of threads lent by another runtime,
# or 0.
OWN = [(1, 1, 1, 0), (2, 1, 100_000, 0), (2, 2, 1, 0), (3, 2, 1, 0), (5, 2, 1000, 0), (8, 3, 1, 0), (8, 8, 100, 0)]
LENT = [(1, 1, 1, 1), (2, 1, 100_000, 2), (3, 2, 1, 3), (3, 1, 1, 2), (5, 2, 1000, 5)]
TEAMS = [*OWN, *LENT]


@pytest.mark.slow
def test_runs_and_barriers_synchronize_all_threads(tmp_path):
    program = build_team(tmp_path)
    for team in TEAMS:
        assert run(program, *team).returncode == 0, team


@pytest.mark.slow
def test_threads_never_race(tmp_path):
    program = build_team(tmp_path, "-fsanitize=thread")
    for team in TEAMS:
        done = run(program, *team)
        assert done.returncode == 0, (team, done.stderr[-4000:])


def test_broken_barrier_is_detected(tmp_path):
    source = (KERNELS / SOURCES[0]).read_text()
    waits = "    wait_while(&place->phase, phase, spin_nanoseconds);\n"
    assert waits in source
    broken = build_team(tmp_path, team=source.replace(waits, "    (void)phase, (void)spin_nanoseconds;\n"))
    assert run(broken, 3, 1, 1, 0).returncode == 1
    assert run(broken, 3, 1, 1, 3).returncode == 1
