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


def test_build_without_a_compiler_succeeds_and_names_the_fix(tmp_path: Path) -> None:
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
    pattern = re.compile(r"_(simd|avx2|avx512|avx512bf16|amx|neon|sve|svebf16|sme)\.c$")
    return sorted(path for path in KERNELS.rglob("*.c") if pattern.search(path.name))


@pytest.mark.parametrize("path", _sources_of_one_instruction_set(), ids=lambda path: path.name)
def test_source_without_target_flags_fails_with_an_error_directive(path: Path) -> None:
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


def test_tiles_use_a_single_header_and_installed_library_has_no_emulation() -> None:
    sources = [path for path in KERNELS.rglob("*.[ch]") if "_tile_" in path.read_text()]
    assert [path.name for path in sources if re.search(r"\b_tile_\w+ *\(", path.read_text())] == ["tiles_amx.h"]
    library = ROOT / "dithc/engine/native/_kernels.so"
    if not library.exists():
        pytest.skip("no library")
    assert b"emulated tiles" not in library.read_bytes()
    assert b"emulated tiles" in (KERNELS / "test/host/emulated_tiles.c").read_bytes()


def test_library_exports_exactly_the_public_header_functions() -> None:
    tool = shutil.which("nm")
    library = ROOT / "dithc/engine/native/_kernels.so"
    if tool is None or not library.exists():
        pytest.skip("no nm, or no library")
    listed = subprocess.run([tool, "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    exported = {line.split()[2] for line in listed.stdout.splitlines() if line.split()[1] == "T"}
    door = re.sub(r"/\*.*?\*/", "", (KERNELS / "include/hcops.h").read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"\b(hc_\w+)\(", door))
    assert exported == declared
