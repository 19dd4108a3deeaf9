"""Tests of the C API with wrong calls: no crash, no hang, and rejection of every detectable error."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.engine import native

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 200))])
@pytest.mark.slow
def test_random_calls_are_rejected_or_completed(seed: int) -> None:
    command = [sys.executable, "-m", "tests.attack.c_api", str(seed), "800"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    last = done.stdout.splitlines()[-1:]
    assert (done.returncode, last) == (0, ["done"]), f"seed {seed}, in {last}: {done.stderr[-2000:]}"


def test_invalid_handles_raise_an_error_with_the_function_name() -> None:
    library, pool, at = native.library(), ctypes.c_void_p(), ctypes.c_int64()
    assert library is not None
    context = native.context(num_threads=1)
    library.hc_pool_create(None, ctypes.byref(pool))
    calls = {
        "hc_sequence": (context, None, -1, ctypes.byref(at)),
        "hc_part": (10, 1, 0, 1, None, None),
        "hc_pool_trim": (None,),
        "hc_pool_start_peak": (context,),
        "hc_context_trim": (None,),
        "hc_barrier_ceiling": (pool, 1),
    }
    for name, arguments in calls.items():
        with pytest.raises(ValueError, match=f"{name}: an argument that it does not take"):
            getattr(library, name)(*arguments)
    library.hc_pool_release(context)  # not released by the failed call
    library.hc_barrier_ceiling(context, 1)
    library.hc_pool_release(pool)
