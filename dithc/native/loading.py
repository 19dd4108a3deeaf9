"""Finds and loads the library, and answers what it holds for this CPU."""

import ctypes
import hashlib
import os
import struct
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dithc.log import logger, problem
from dithc.native.signatures import declare

log = logger(__name__)

# Equal to HC_ABI_VERSION of the header that `signatures.py` was written for.
ABI_VERSION = 13
LIBRARY = Path(__file__).parent / "_kernels.so"
ISA_VARIABLE = "HCOPS_ISA"
SEAL = b"\ndithc SHA-256: "  # in front of the digest at the end of a library; `setup.py` has the same text
ELF_HEADER_BYTES = 64


@dataclass(frozen=True)
class Loading:
    """What came of loading the library: the library, or None and the reason."""

    library: ctypes.CDLL | None
    reason: str


@cache
def load() -> Loading:
    """Loads the library once; logs when there is none, because other back ends serve then."""
    loading = _open(LIBRARY)
    if loading.library is None:
        log.warning("C kernels are off: %s", loading.reason)
    return loading


def library() -> ctypes.CDLL | None:
    """The loaded library, or None; `load().reason` says why."""
    return load().library


@cache
def isa() -> str:
    """Name of the instruction set that kernels are chosen for: the fastest of the CPU, or what HCOPS_ISA names.

    Raises:
        UserError: HCOPS_ISA names an instruction set that does not exist or that this CPU lacks.
    """
    handle = library()
    if handle is None:
        return "none"
    return str(handle.hc_isa_name(isa_number(os.environ.get(ISA_VARIABLE, ""))).decode())


def kernels(level: str | None = None) -> list[tuple[str, str]]:
    """What serves a machine of instruction set `level` (None: this one): kernels, each with the set it is written for.

    Empty without a library.
    """
    handle = library()
    lines: list[tuple[str, str]] = []
    if handle is None:
        return lines
    number = isa_number(level or isa())
    name, written_for = ctypes.c_char_p(), ctypes.c_int()
    while handle.hc_kernel(number, len(lines), ctypes.byref(name), ctypes.byref(written_for)) == 0:
        lines.append(((name.value or b"").decode(), handle.hc_isa_name(written_for).decode()))
    return lines


def isa_number(wanted: str) -> int:
    """The number of an instruction set that this CPU has; "" is the one whose kernels are fastest.

    Raises:
        UserError: it does not exist, or this CPU lacks it.
    """
    handle = library()
    assert handle is not None, "asked for an instruction set without a library"
    number = ctypes.c_int()
    if handle.hc_isa_detect(wanted.encode(), ctypes.byref(number)) != 0:
        handle.hc_isa_detect(None, ctypes.byref(number))
        raise problem(
            f"instruction set of the C kernels (environment variable {ISA_VARIABLE})",
            got=wanted,
            expected=f"ref, or an instruction set of this CPU up to {handle.hc_isa_name(number).decode()}",
            fix=f"correct or unset {ISA_VARIABLE}",
        )
    return number.value


def fault(path: Path) -> str | None:
    """Return why a library of this package is not to be loaded, or None. A damaged library can end the process.

    `setup.py` appends the SHA-256 to a library that it has built, and writes the cause of a failed build to a text file.
    """
    why = path.with_suffix(".txt")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        cause = why.read_text().strip() if why.exists() else "it was never built in this folder, or was removed"
        return f"there is no {path}: {cause}"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    content, mark, digest = data.rpartition(SEAL)
    if mark and hashlib.sha256(content).hexdigest().encode() != digest:
        return f"{path} is damaged: its content is not that of the build"
    with Path(sys.executable).open("rb") as interpreter:
        ours = interpreter.read(ELF_HEADER_BYTES)
    if data[:4] != ours[:4] or len(data) < ELF_HEADER_BYTES:
        return f"{path} is damaged: it is no shared library"
    if (data[4:6], data[18:20]) != (ours[4:6], ours[18:20]):
        return f"{path} is for another processor architecture"
    # Without a digest, as after `strip`: the table of sections is the end of a file.
    (table,), (size, count) = struct.unpack_from("=Q", data, 40), struct.unpack_from("=HH", data, 58)
    if len(data) < table + size * count:
        return f"{path} is damaged: {len(data)} of {table + size * count} bytes"
    return None


def _open(path: Path) -> Loading:
    if cause := fault(path):
        return Loading(None, f"{cause}; install the package again")
    try:
        handle = ctypes.CDLL(str(path))
        version = handle.hc_version()
    except (OSError, AttributeError) as error:
        return Loading(None, f"{path} does not load: {error}")
    if version != ABI_VERSION:
        return Loading(None, f"{path} has ABI {version}, this code expects {ABI_VERSION}; install the package again")
    try:
        declare(handle)
    except AttributeError as error:
        return Loading(None, f"{path} lacks a function: {error}; install the package again")
    return Loading(handle, str(path))
