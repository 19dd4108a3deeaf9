"""The C kernels give the numbers of plain arithmetic, and their absence is said and survived."""

import ctypes
import logging
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from dithc.hcops import native
from dithc.log import UserError

ROOT = Path(__file__).parents[2]
DOUBLE_EPSILON = np.finfo(np.float64).eps


@pytest.fixture
def fresh_native():
    """Loading and detection are cached; a test that changes what they see starts and leaves them empty."""
    caches = (native.load, native.isa, native._isa_number)
    for cached in caches:
        cached.cache_clear()
    yield native
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def needs_library():
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load().reason}")


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 4097, 1_000_003])
def test_sum_of_squares_equals_float64_numpy(count, needs_library):
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    exact = float(np.sum(np.square(values.astype(np.float64))))
    assert native.sum_of_squares(torch.from_numpy(values)) == pytest.approx(exact, rel=DOUBLE_EPSILON * max(count, 1))


def test_sum_of_squares_does_not_overflow_where_fp32_would(needs_library):
    assert native.sum_of_squares(torch.full((4,), 1e30)) == pytest.approx(4e60, rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_sum_of_squares_carries_a_bad_value_through(bad, needs_library):
    total = native.sum_of_squares(torch.tensor([1.0, bad, 1.0]))
    assert np.isnan(total) if np.isnan(bad) else np.isinf(total)


@pytest.mark.parametrize("tensor", [torch.zeros(4, dtype=torch.float64), torch.zeros(4, 4).t()[1:]])
def test_sum_of_squares_refuses_what_it_would_read_wrongly(tensor):
    with pytest.raises(ValueError, match="expected a contiguous"):
        native.sum_of_squares(tensor)


def test_a_missing_library_is_said_once_and_torch_takes_over(fresh_native, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    with caplog.at_level("WARNING"):
        assert native.sum_of_squares(torch.tensor([3.0, 4.0])) == 25.0
        assert native.library() is None
    assert (native.isa(), native.kernels()) == ("none", [])
    assert "no C compiler" in native.load().reason
    assert caplog.text.count("C kernels are off") == 1


def test_a_library_that_does_not_load_is_a_reason(fresh_native, monkeypatch, tmp_path):
    suffix = native.EXTENSION_SUFFIXES[0]
    (tmp_path / f"_kernels{suffix}").write_bytes(b"not a library")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    assert native.library() is None
    assert "does not load" in native.load().reason


def test_a_library_of_another_version_is_not_used(fresh_native, monkeypatch, needs_library):
    native.load.cache_clear()
    monkeypatch.setattr(native, "ABI_VERSION", 99)
    assert native.library() is None
    assert "install the package again" in native.load().reason


def test_the_environment_can_lower_the_instruction_set(fresh_native, monkeypatch, needs_library):
    monkeypatch.setenv("HCOPS_ISA", "ref")
    assert native.isa() == "ref"


@pytest.mark.parametrize("name", ["avx9000", "sme neon"])
def test_an_unknown_instruction_set_is_refused(name, fresh_native, monkeypatch, needs_library):
    monkeypatch.setenv("HCOPS_ISA", name)
    with pytest.raises(UserError, match="HCOPS_ISA"):
        native.isa()


def test_every_kernel_file_stands_in_the_table_and_back(needs_library):
    door = (ROOT / "kernels").glob("*/*_*_*.c")
    assert {name for name, _ in native.kernels()} == {path.stem for path in door}


def test_bad_arguments_give_a_status_and_no_crash(needs_library):
    handle, total = native.library(), ctypes.c_double()
    assert handle.hc_sumsq_f32(0, None, 1, ctypes.byref(total)) == -1
    assert handle.hc_sumsq_f32(0, None, -1, ctypes.byref(total)) == -1
    assert handle.hc_sumsq_f32(7, None, 0, ctypes.byref(total)) == -2
    assert handle.hc_sumsq_f32(0, None, 0, None) == -1
    assert handle.hc_isa_name(7) is None


def test_the_kernels_compile_without_a_warning(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    sources = sorted(map(str, (ROOT / "kernels").rglob("*.c")))
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wpedantic", "-shared", "-fPIC"]
    includes = [f"-I{ROOT / 'kernels/include'}", f"-I{ROOT / 'kernels'}"]
    done = subprocess.run(
        [compiler, *flags, *includes, *sources, "-o", str(tmp_path / "kernels.so")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
