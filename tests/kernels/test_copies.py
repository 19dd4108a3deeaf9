"""Copies of many callers through one engine are correct, with and without threads, also under sanitizers."""

from functools import partial

import pytest

from tests.kernels.programs import KERNELS, build, run

NAMES = ("copies", "copy_engine", "copy_queue", "copy_device")
SOURCES = (*(f"memory/{name}.c" for name in NAMES), "team/team.c", "test/copy_runs.c")
# With (1) or without (0) threads, and the size of the callers' team.
ENGINES = [(1, 1), (1, 3), (0, 1), (0, 2)]
build_copies = partial(build, SOURCES, "hc_test_copies(atoi(words[1]), atoi(words[2]))")


@pytest.mark.slow
def test_every_copy_finishes_with_all_bytes(tmp_path):
    program = build_copies(tmp_path)
    for engine in ENGINES:
        assert run(program, *engine).returncode == 0, engine


@pytest.mark.sampled
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.slow
def test_copies_are_clean_under_sanitizers(tmp_path, sanitizer):
    program = build_copies(tmp_path, f"-fsanitize={sanitizer}")
    for engine in ENGINES[1::2]:
        done = run(program, *engine)
        assert done.returncode == 0, (engine, done.stderr[-4000:])


@pytest.mark.parametrize(
    ("name", "line", "mutation"),
    [
        ("copy_queue", "copy->running > 0 || left(copy) > 0", "left(copy) > 0"),
        ("copy_device", "part.target_offset += start;", ""),
    ],
)
@pytest.mark.slow
def test_early_finish_and_wrong_offset_mutations_are_detected(tmp_path, name, line, mutation):
    text = (KERNELS / "memory" / f"{name}.c").read_text()
    assert line in text
    broken = build_copies(tmp_path, "-fsanitize=address", **{name: text.replace(line, mutation)})
    assert any(run(broken, *engine).returncode != 0 for engine in ENGINES)
