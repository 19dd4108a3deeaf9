"""Functions of the OpenMP runtime that torch has loaded, for contexts that run on its threads."""

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from dithc.native.signatures import OpenMP

BACKEND = "ATen parallel backend: OpenMP"
LIBRARY_OF_TORCH = "libtorch_cpu.so"
NAMES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class Runtime(NamedTuple):
    """Addresses of the functions of an OpenMP runtime and its name, or None and the reason for its absence."""

    functions: OpenMP | None
    words: str


@cache
def runtime() -> Runtime:
    """Return the runtime of torch's operators, libgomp or LLVM's, to which torch's library is linked."""
    if BACKEND not in torch.__config__.parallel_info():
        return Runtime(None, "this torch does not run on OpenMP")
    found = Path(torch.__file__).parent / "lib" / LIBRARY_OF_TORCH
    try:
        handle = ctypes.CDLL(str(found))
        addresses = [ctypes.cast(getattr(handle, name), ctypes.c_void_p) for name in NAMES]
    except (OSError, AttributeError) as error:
        return Runtime(None, f"the OpenMP runtime of torch cannot be used ({error})")
    return Runtime(OpenMP(*addresses), "the OpenMP runtime of torch")
