"""Allocation of torch's CPU tensors from a pool, per thread and period: `set MemType` of Algorithm 1.

The mode covers `torch.empty`, temporaries, autograd gradients and operator outputs of the calling thread. On a CPU, the
backward pass runs on the thread that starts it. Tensors outlive the mode, and any thread may free them. Requests below
1 MiB, and requests that no pool can serve, use torch's previous allocator. The extension (`torch_allocator.cpp`) is
built at installation for one torch version.
"""

import ctypes
import re
import threading
from functools import cache
from pathlib import Path

import torch

from dithc.core.logging import get_logger
from dithc.engine import native
from dithc.engine.memory.pool import SMALLEST_BYTES, Pool, PoolHandle
from dithc.engine.native import loading

log = get_logger(__name__)


class _Mode(threading.local):
    """Pool of this thread's mode (None: off), and references that keep its memory alive after a close."""

    pool: Pool | None = None
    handle: PoolHandle | None = None


_mode = _Mode()
_installation = threading.Lock()


def available() -> bool:
    """Return whether torch's allocator can be switched; see `reason`."""
    return load().library is not None


def reason() -> str:
    """Return the path of the extension, or why it is unavailable."""
    return load().reason


def enter(pool: Pool) -> Pool | None:
    """Allocate this thread's tensors from `pool`, and return the previous pool, for `leave`.

    A closed pool ends the mode. Without the extension, the call has no effect and logs that once.
    """
    library, previous = load().library, _mode.pool
    if library is not None:
        library.dithc_allocator_mode(pool._pool, native.context())
        _mode.pool, _mode.handle = pool, pool.handle
    return previous


def leave(previous: Pool | None = None) -> None:
    """End this thread's mode, or restore the mode that `enter` returned."""
    library = load().library
    if library is None:
        return
    if previous is None:
        library.dithc_allocator_mode(None, None)
        _mode.pool = _mode.handle = None
    else:
        enter(previous)


def load() -> loading.LibraryLoad:
    """Load the extension once and install it before torch's allocator; log if it is missing."""
    with _installation:
        return _load()


@cache
def _load() -> loading.LibraryLoad:
    version = base_version(torch.__version__)
    opened = open_extension(path_of(version), version=version)
    if opened.library is None:
        log.info("torch's own tensors stay with torch's allocator: %s", opened.reason)
    return opened


def base_version(version: str) -> str:
    """Return the base version, `2.13.0` for `2.13.0+cpu`."""
    match = re.match(r"\d+\.\d+\.\d+", version)
    return match[0] if match else version


def path_of(version: str) -> Path:
    """Return the path of the extension for a torch version, as named by setup.py."""
    return Path(__file__).parent / f"_torch_allocator_{version.replace('.', '_')}.so"


def open_extension(path: Path, *, version: str) -> loading.LibraryLoad:
    """Load an extension for this torch version, and install it before torch's allocator."""
    kernels = native.library()
    if kernels is None:
        return loading.LibraryLoad(None, "memory pools require the C kernels")
    if cause := loading.fault(path):
        return loading.LibraryLoad(None, f"{cause}; reinstall with --no-build-isolation next to torch {version}")
    try:
        library = ctypes.CDLL(str(path))
        _declare(library)
    except (OSError, AttributeError) as error:
        return loading.LibraryLoad(None, f"{path} cannot be loaded: {error}; reinstall with --no-build-isolation")
    built_for = library.dithc_allocator_torch().decode()
    if built_for != version:
        return loading.LibraryLoad(None, f"{path} is for torch {built_for}, this is {version}; reinstall")
    if library.dithc_allocator_install(ctypes.cast(kernels.hc_pool_tensor, ctypes.c_void_p), SMALLEST_BYTES) != 0:
        return loading.LibraryLoad(None, "another library has installed an allocator of higher priority in torch")
    return loading.LibraryLoad(library, str(path))


def _declare(library: ctypes.CDLL) -> None:
    library.dithc_allocator_torch.argtypes, library.dithc_allocator_torch.restype = (), ctypes.c_char_p
    library.dithc_allocator_install.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    library.dithc_allocator_install.restype = ctypes.c_int
    library.dithc_allocator_mode.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.dithc_allocator_mode.restype = None
    library.dithc_allocator_pool.argtypes, library.dithc_allocator_pool.restype = (), ctypes.c_void_p
    library.dithc_allocator_counters.argtypes = (ctypes.POINTER(ctypes.c_int64),)
    library.dithc_allocator_counters.restype = None
