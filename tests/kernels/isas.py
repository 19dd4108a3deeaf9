"""Instruction sets of the kernels that this CPU supports, as parameters of tests."""

import ctypes
from collections.abc import Collection, Iterable
from typing import Any

import pytest

from dithc.engine import native

ALL = ("ref", "avx2", "avx512", "avx512bf16", "amxfp32", "neon", "sve", "svebf16", "sme")


def is_supported(name: str, *, emulates_tiles: bool = False) -> bool:
    """Return whether the library has kernels for an instruction set, and this CPU supports it, except AMX tiles if
    emulated.
    """
    handle = native.library()
    name = "avx512bf16" if emulates_tiles and name == "amxfp32" else name
    return handle is not None and handle.hc_isa_detect(name.encode(), ctypes.byref(ctypes.c_int())) == 0


def require_isa(name: str) -> str:
    """Return an instruction set; skip the test if the library or this CPU lacks it."""
    if not is_supported(name):
        pytest.skip(
            f"this CPU does not run {name}" if native.library() else f"C kernels: {native.load_library().reason}"
        )
    return name


def sampled_if_supported(names: Collection[str], *, emulates_tiles: bool = False) -> list[Any]:
    """Return parameters. Tests sample supported sets; each unsupported set is a skip with a reason."""
    able = {name for name in names if is_supported(name, emulates_tiles=emulates_tiles)}
    return [pytest.param(name, marks=pytest.mark.sampled) if name in able else name for name in names]


def newest_and_alternates(names: Iterable[str]) -> list[Any]:
    """Return parameters. The last supported set is always tested; a commit draws one of the earlier sets."""
    names = list(names)
    able = [name for name in names if is_supported(name)]
    older = pytest.mark.alternates
    return [
        pytest.param(name, marks=older("older instruction sets", name)) if name in able[:-1] else name for name in names
    ]
