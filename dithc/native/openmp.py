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
    """OpenMP runtime.

    Attributes:
        functions: Addresses of its functions, or None.
        words: File of the runtime, or the reason for its absence.
    """

    functions: OpenMP | None
    words: str


@cache
def runtime() -> Runtime:
    """Return the runtime of torch's operators, libgomp or LLVM's.

    Symbols are looked up starting at torch's library. If the process has several runtimes, the result is the runtime
    that torch is linked to.
    """
    if BACKEND not in torch.__config__.parallel_info():
        return Runtime(None, "this torch does not run on OpenMP")
    found = Path(torch.__file__).parent / "lib" / LIBRARY_OF_TORCH
    try:
        handle = ctypes.CDLL(str(found))
        addresses = [ctypes.cast(getattr(handle, name), ctypes.c_void_p) for name in NAMES]
    except (OSError, AttributeError) as error:
        return Runtime(None, f"the OpenMP runtime of torch cannot be used ({error})")
    return Runtime(OpenMP(*addresses), _file_of(addresses[0]))


class _Found(ctypes.Structure):
    """Dl_info."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("symbol_address", ctypes.c_void_p),
    ]


def _file_of(address: ctypes.c_void_p) -> str:
    """Return the file that contains a function."""
    found = _Found()
    if not ctypes.CDLL(None).dladdr(address, ctypes.byref(found)):
        return "its OpenMP runtime"
    return (found.file or b"its OpenMP runtime").decode()
