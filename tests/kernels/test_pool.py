"""Budgets of pools hold and blocks never overlap, with many threads, also under sanitizers."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.kernels.programs import KERNELS, build, run

NAMES = ("memory/arena.c", "memory/pages.c", "memory/pool.c", "team/team.c", "test/pool_runs.c")
FILE_BYTES = 16 << 20
build_pool = partial(build, NAMES, "hc_test_pool(atoi(words[1]), atoi(words[2]))")


def run_in(program: Path, threads: int, folder: Path | None) -> "subprocess.CompletedProcess[str]":
    """Run the program, with a file in `folder` for spilled blocks."""
    if folder is None:
        return run(program, threads, -1)
    file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(file, 0, FILE_BYTES)
        return run(program, threads, file, pass_fds=(file,))
    finally:
        os.close(file)


@pytest.mark.parametrize(("sanitizer", "threads"), [("", 1), ("thread", 5), ("address,undefined", 5)])
@pytest.mark.slow
def test_budgets_hold_and_blocks_never_overlap(tmp_path, sanitizer, threads):
    program = build_pool(tmp_path, *([f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []))
    for folder in (None, tmp_path):
        done = run_in(program, threads, folder)
        assert done.returncode == 0, (folder, done.stderr[-4000:])


def test_exceeded_budget_is_detected(tmp_path):
    source = (KERNELS / "memory/pool.c").read_text()
    condition = "    if (over_budget > 0 && hc_arena_returnable(&pool->arena, over_budget) < over_budget) {\n        return 0;\n"
    assert condition in source
    broken = build_pool(tmp_path, pool=source.replace("        return 0;\n", "        return 1;\n", 1))
    assert run_in(broken, 2, None).returncode == 1
