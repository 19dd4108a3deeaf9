"""Build of the library: the package installs without a compiler, and sources with wrong flags do not compile."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"


def test_without_a_compiler_the_package_builds_and_names_the_fix(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **dict.fromkeys(("CC", "CXX"), str(tmp_path / "no-such-compiler"))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "C kernels were not built" in done.stderr
    assert "Numba" in done.stderr
    assert "apt-get install build-essential" in done.stderr
    assert not list((tmp_path / "lib").rglob("*.so"))
    assert "no C compiler" in (tmp_path / "lib/dithc/engine/native/_kernels.txt").read_text()


def _sources_of_one_instruction_set() -> list[Path]:
    """Return all sources that are compiled with the flags of one instruction set, or once per set."""
    pattern = re.compile(r"_(simd|avx2|avx512|avx512bf16|amx|neon|sve|sme)\.c$")
    return sorted(path for path in KERNELS.rglob("*.c") if pattern.search(path.name))


@pytest.mark.parametrize("path", _sources_of_one_instruction_set(), ids=lambda path: path.name)
def test_a_source_compiled_without_its_flags_stops_with_an_error_that_names_them(path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    suffix = path.stem.rsplit("_", 1)[1]
    target = [] if suffix == "simd" else [f"-DHC_TARGET_{suffix.upper()}=1", f"-DHC_SUFFIX={suffix}"]
    includes = [f"-I{KERNELS / 'include'}", f"-I{KERNELS}"]
    done = subprocess.run(
        [compiler, "-std=gnu11", "-fsyntax-only", *target, *includes, str(path)], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "#error" in done.stderr


def test_tiles_are_reached_through_one_header_and_not_emulated_where_installed() -> None:
    sources = [path for path in KERNELS.rglob("*.[ch]") if "_tile_" in path.read_text()]
    assert [path.name for path in sources if re.search(r"\b_tile_\w+ *\(", path.read_text())] == ["tiles_amx.h"]
    library = ROOT / "dithc/engine/native/_kernels.so"
    if not library.exists():
        pytest.skip("no library")
    assert b"emulated tiles" not in library.read_bytes()
    assert b"emulated tiles" in (KERNELS / "test/host/emulated_tiles.c").read_bytes()


def test_the_functions_of_the_door_are_all_that_the_library_exports() -> None:
    tool = shutil.which("nm")
    library = ROOT / "dithc/engine/native/_kernels.so"
    if tool is None or not library.exists():
        pytest.skip("no nm, or no library")
    listed = subprocess.run([tool, "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    exported = {line.split()[2] for line in listed.stdout.splitlines() if line.split()[1] == "T"}
    door = re.sub(r"/\*.*?\*/", "", (KERNELS / "include/hcops.h").read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"\b(hc_\w+)\(", door))
    assert exported == declared
