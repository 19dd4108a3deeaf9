"""Emulated tile unit against exact fractions and Intel's rules, and AMX tests of this folder with a library that uses
the unit.
"""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.test_cases import EMULATED, ROOT, build_target, cmake, native_program

pytestmark = [pytest.mark.slow, pytest.mark.unit("kernel-tests"), EMULATED]
# Message of the program for each misuse of kernels/test/tile_runs.c.
MISUSE = {
    "unconfigured": "a load of tile 0 by a thread that has not configured its tiles",
    "no such tile": "a load of tile 8, which is not configured",
    "same tiles": "tiles 0, 1 and 1, which must differ",
    "rows differ": "into 15 of 64",
    "palette": "palette 2",
    "tall": "17 rows of 64 bytes",
}
# Tests with AMX parameters, without the slowest tests.
FILES = ("attention", "attention_heads", "few_rows", "gemm", "gemm_bf16", "gemm_clusters", "gemm_split")
LONG = "long_sequence or past_the_caches or several_blocks or any_length or any_threads"
Bits = npt.NDArray[np.uint32]


def test_installed_library_rejects_emulated_tiles(tmp_path: Path) -> None:
    native_program("emulated", "amxfp32")
    command = [*cmake(), "-S", str(ROOT / "kernels"), "-B", str(tmp_path), "-DHCOPS_EMULATE_TILES=ON"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs HCOPS_TEST" in done.stderr


@pytest.mark.parametrize("misuse", MISUSE)
def test_tile_misuse_aborts_the_program_with_a_message(misuse: str) -> None:
    program = native_program("emulated", "amxfp32")
    done = subprocess.run([program, "tiles", misuse], capture_output=True, text=True)
    assert done.returncode < 0, "nothing noticed"
    assert MISUSE[misuse] in done.stderr


def number(bits: int) -> Fraction | float:
    """Return an fp32 as the unit reads it: denormals are zero, inf and nan are floats."""
    x = float(np.uint32(bits).view(np.float32))
    return Fraction(x) if np.isfinite(x) and abs(x) >= 2.0**-126 else 0 * Fraction(1) if np.isfinite(x) else x


def round_fp32(x: Fraction | float) -> Fraction | float:
    """Round to fp32, to nearest even; denormal results become zero."""
    if isinstance(x, float) or x == 0:
        return x
    exponent = max(abs(x).numerator.bit_length() - abs(x).denominator.bit_length() - 25, -160)
    while abs(x) / Fraction(2) ** exponent >= 2**24:
        exponent += 1
    nearest = round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent
    if abs(nearest) >= 2**128:
        return float("inf") if nearest > 0 else -float("inf")
    return nearest if abs(nearest) >= Fraction(2) ** -126 else Fraction(0)


def plus(x: Fraction | float, y: Fraction | float) -> Fraction | float:
    if isinstance(x, float) or isinstance(y, float):
        return float(x if isinstance(x, float) else 0) + float(y if isinstance(y, float) else 0)
    return x + y


def times(x: Fraction | float, y: Fraction | float) -> Fraction | float:
    if isinstance(x, float) or isinstance(y, float):
        return (x if isinstance(x, float) else float(np.sign(x))) * (y if isinstance(y, float) else float(np.sign(y)))
    return x * y


def product(sums: Bits, a: Bits, b: Bits, rows: int, pairs: int, columns: int) -> npt.NDArray[np.float64]:
    """Compute TDPBF16PS: the first elements of each pair in one chain of FMAs, the second elements in another."""
    found = np.zeros((rows, columns))
    for i, j in np.ndindex(rows, columns):
        chains: list[Fraction | float] = [Fraction(0), Fraction(0)]
        for p in range(pairs):
            for half, shift in enumerate((16, 0)):
                x, y = (number((int(bits) << shift) & 0xFFFF0000) for bits in (a[i, p], b[p, j]))
                chains[half] = round_fp32(plus(chains[half], times(x, y)))
        found[i, j] = float(round_fp32(plus(number(int(sums[i, j])), round_fp32(plus(*chains)))))
    return found


@pytest.mark.parametrize("kind", ["usual", "any bits", "tiny", "huge"])
def test_tile_products_match_the_manual_bitwise(kind: str) -> None:
    """Covers complete and smaller tiles, with another rounding direction of the caller, which must be preserved."""
    program, rng = native_program("emulated", "amxfp32"), np.random.default_rng(1)
    for rows, pairs, columns in ((16, 16, 16), (3, 5, 7), (1, 1, 1), (16, 2, 9)):
        tiles = (rng.standard_normal((3, 16, 16)) * {"tiny": 2.0**-63, "huge": 2.0**63}.get(kind, 1)).astype(np.float32)
        bits: Bits = tiles.view(np.uint32)
        if kind == "tiny":
            bits[0] = rng.integers(0, 1 << 25, (16, 16))
        bits[1:] = bits[1:] & 0xFFFF0000 | rng.permutation(bits[1:].ravel()).reshape(2, 16, 16) >> 16
        if kind == "any bits":
            bits = rng.integers(0, 1 << 32, (3, 16, 16), dtype=np.uint32)
        command = [program, "tiles", *map(str, (rows, pairs, columns))]
        done = subprocess.run(command, input=bits.tobytes(), capture_output=True)
        assert done.returncode == 0, "rounding, exceptions, or tiles that are still in use"
        got = np.frombuffer(done.stdout, np.float32).reshape(16, 16)
        np.testing.assert_array_equal(got[:rows, :columns], product(*bits, rows, pairs, columns))
        outside = np.ones((16, 16), bool)
        outside[:rows, :columns] = False
        np.testing.assert_array_equal(got.view(np.uint32)[outside], bits[0][outside])


@pytest.mark.sampled
@pytest.mark.parametrize("file", FILES)
def test_amx_tests_pass_on_emulated_tiles(file: str) -> None:
    native_program("emulated", "amxfp32")
    environment = os.environ | {
        "DITHC_EMULATED_TILES": str(build_target("emulated", "_kernels")),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--no-header", "-p", "no:xdist", "-p", "no:cacheprovider",
               "-p", "tests.kernels.emulated_tiles", f"tests/kernels/test_{file}.py",
               "-k", f"(amx or split or clusters) and not ({LONG})"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "amxfp32" not in done.stdout.lower(), f"skipped: {done.stdout[-2000:]}"
