"""Budgets of pools hold and blocks never overlap, with many threads, also under ThreadSanitizer and AddressSanitizer."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"
NAMES = ("memory/arena.c", "memory/pages.c", "memory/pool.c", "team/team.c", "test/pool_runs.c")
MAIN = """
#include <stdlib.h>
#include "test/cases.h"
int main(int count, char **words) {
    return count != 3 ? 9 : hc_test_pool(atoi(words[1]), atoi(words[2]));
}
"""
FILE_BYTES = 16 << 20


def build(folder: Path, *flags: str, pool: str = "") -> Path:
    if not shutil.which("cc"):
        pytest.skip("no C compiler (cc)")
    (folder / "main.c").write_text(MAIN)
    sources = [folder / "main.c", *(KERNELS / name for name in NAMES)]
    if pool:
        (folder / "pool.c").write_text(pool)
        sources[3] = folder / "pool.c"
    includes = [f"-I{KERNELS / name}" for name in ("", "include", "team")]
    command = ["cc", "-std=gnu11", "-O1", "-g", *flags, *includes, *map(str, sources), "-o", str(folder / "pool")]
    done = subprocess.run([*command, "-lpthread"], capture_output=True, text=True, check=False)
    if done.returncode and "sanitize" in " ".join(flags):
        pytest.skip(f"no sanitizer: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return folder / "pool"


def run(program: Path, threads: int, *, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    # ThreadSanitizer's fixed map of memory does not go with every layout that the system draws.
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    file = -1
    if folder is not None:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        os.posix_fallocate(file, 0, FILE_BYTES)
    try:
        words = [*fixed, str(program), str(threads), str(file)]
        kept = (file,) if folder is not None else ()
        return subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, pass_fds=kept)
    finally:
        if folder is not None:
            os.close(file)


@pytest.mark.parametrize(("sanitizer", "threads"), [("", 1), ("thread", 5), ("address,undefined", 5)])
@pytest.mark.slow
def test_budgets_hold_and_blocks_never_overlap(tmp_path, sanitizer, threads):
    program = build(tmp_path, *([f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []))
    for folder in (None, tmp_path):
        done = run(program, threads, folder=folder)
        assert done.returncode == 0, (folder, done.stderr[-4000:])


def test_a_budget_that_is_not_kept_is_seen(tmp_path):
    source = (KERNELS / "memory/pool.c").read_text()
    refusal = "    if (over_budget > 0 && hc_arena_returnable(&pool->arena, over_budget) < over_budget) {\n        return 0;\n"
    assert refusal in source
    broken = build(tmp_path, pool=source.replace("        return 0;\n", "        return 1;\n", 1))
    assert run(broken, 2).returncode == 1
