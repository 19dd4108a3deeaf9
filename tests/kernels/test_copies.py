"""Copies of many callers through one engine keep every byte, with threads and without, also under sanitizers."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"
ENGINE = [KERNELS / "memory" / f"{name}.c" for name in ("copies", "copy_engine", "copy_queue", "copy_device")]
SOURCES = [*ENGINE, KERNELS / "team/team.c", KERNELS / "test/copy_runs.c"]
MAIN = """
#include <stdlib.h>
#include "test/cases.h"
int main(int count, char **words) {
    return count != 3 ? 9 : hc_test_copies(atoi(words[1]), atoi(words[2]));
}
"""
# With threads or without, and the size of the callers' team.
ENGINES = [(1, 1), (1, 3), (0, 1), (0, 2)]


def build(folder: Path, *flags: str, **replaced: str) -> Path:
    """replaced: text of sources by name, instead of the file's."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler (cc)")
    (folder / "main.c").write_text(MAIN)
    sources = [folder / "main.c", *SOURCES]
    for name, text in replaced.items():
        (folder / f"{name}.c").write_text(text)
        sources = [folder / f"{name}.c" if source.stem == name else source for source in sources]
    program = folder / "copies"
    command = ["cc", "-std=c11", "-O1", "-g", *flags, f"-I{KERNELS}", f"-I{KERNELS / 'include'}", "-o", str(program)]
    done = subprocess.run([*command, *map(str, sources), "-lpthread"], capture_output=True, text=True)
    if done.returncode and "sanitize" in " ".join(flags):
        pytest.skip(f"no such sanitizer: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, engine: tuple[int, int]) -> "subprocess.CompletedProcess[str]":
    # ThreadSanitizer's fixed map of memory does not go with every layout that the system draws.
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    return subprocess.run([*fixed, str(program), *map(str, engine)], capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_every_byte_arrives_and_every_copy_ends(tmp_path):
    program = build(tmp_path)
    for engine in ENGINES:
        assert run(program, engine).returncode == 0, engine


@pytest.mark.sampled
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path, sanitizer):
    program = build(tmp_path, f"-fsanitize={sanitizer}")
    for engine in ENGINES[1::2]:
        done = run(program, engine)
        assert done.returncode == 0, (engine, done.stderr[-4000:])


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("copy_queue", "copy->running > 0 || left(copy) > 0", "left(copy) > 0"),
        ("copy_device", "part.target_offset += start;", ""),
    ],
)
@pytest.mark.slow
def test_a_copy_that_ends_too_early_or_goes_astray_is_seen(tmp_path, name, right, wrong):
    text = (KERNELS / "memory" / f"{name}.c").read_text()
    assert right in text
    broken = build(tmp_path, "-fsanitize=address", **{name: text.replace(right, wrong)})
    assert any(run(broken, engine).returncode != 0 for engine in ENGINES)
