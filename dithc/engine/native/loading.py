"""Loading of the library, and its kernels for this CPU."""

import ctypes
import hashlib
import struct
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dithc.core.logging import get_logger, user_error
from dithc.engine.native.signatures import declare

log = get_logger(__name__)

# HC_ABI_VERSION of the header that `signatures.py` matches.
ABI_VERSION = 14
LIBRARY = Path(__file__).parent / "_kernels.so"
ISA_VARIABLE = "HCOPS_ISA"
MAX_ISA = 100  # above each hc_isa
SEAL = b"\ndithc SHA-256: "  # precedes the digest at the end of a library; `setup.py` contains the same text
ELF_HEADER_BYTES = 64


class LibraryLoad(NamedTuple):
    library: ctypes.CDLL | None
    reason: str


@cache
def load_library() -> LibraryLoad:
    """Load the library once. Log a missing library, because other back ends are then used."""
    loading = _open(LIBRARY)
    if loading.library is None:
        log.warning("C kernels are off: %s", loading.reason)
    return loading


def library() -> ctypes.CDLL | None:
    """Return the loaded library, or None; `load_library().reason` contains the reason."""
    return load_library().library


def loaded() -> Any:
    handle = library()
    assert handle is not None, load_library().reason
    return handle


def isa_name(name: str) -> str:
    """Return the name of an instruction set ("": the fastest of this CPU model); UserError if this CPU lacks it."""
    return str(loaded().hc_isa_name(isa_number(name)).decode())


def supported_isas() -> list[str]:
    """Return the instruction sets that this CPU supports, the reference first; empty without a library."""
    handle = library()
    names = [] if handle is None else [handle.hc_isa_name(number) for number in range(MAX_ISA)]
    return [n.decode() for n in names if n and loaded().hc_isa_detect(n, ctypes.byref(ctypes.c_int())) == 0]


def kernels_of(level: str) -> list[tuple[str, str]]:
    """Return the kernels for instruction set `level`, each with its own; empty without a library."""
    handle = library()
    lines: list[tuple[str, str]] = []
    if handle is None:
        return lines
    number = isa_number(level)
    name, isa = ctypes.c_char_p(), ctypes.c_int()
    while handle.hc_kernel(number, len(lines), ctypes.byref(name), ctypes.byref(isa)) == 0:
        lines.append(((name.value or b"").decode(), handle.hc_isa_name(isa).decode()))
    return lines


def isa_number(name: str) -> int:
    """Return the number of an instruction set ("": with the fastest kernels); UserError if this CPU lacks it."""
    handle, number = loaded(), ctypes.c_int()
    if handle.hc_isa_detect(name.encode(), ctypes.byref(number)) != 0:
        handle.hc_isa_detect(None, ctypes.byref(number))
        subject = f"instruction set of the C kernels (environment variable {ISA_VARIABLE})"
        expected = f"ref, or an instruction set of this CPU up to {handle.hc_isa_name(number).decode()}"
        raise user_error(subject, got=name, expected=expected, fix=f"correct or unset {ISA_VARIABLE}")
    return number.value


def fault(path: Path) -> str | None:
    """Return why a library of this package must not be loaded, or None. A damaged library can crash the process.

    `setup.py` appends the SHA-256 digest to a library, and writes the cause of a failed build to a text file.
    """
    note = path.with_suffix(".txt")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        cause = note.read_text().strip() if note.exists() else "it was never built in this folder, or was removed"
        return f"{path} is missing: {cause}"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    content, seal, digest = data.rpartition(SEAL)
    if seal and hashlib.sha256(content).hexdigest().encode() != digest:
        return f"{path} is damaged: its content differs from the build"
    with Path(sys.executable).open("rb") as interpreter:
        elf_header = interpreter.read(ELF_HEADER_BYTES)
    if data[:4] != elf_header[:4] or len(data) < ELF_HEADER_BYTES:
        return f"{path} is damaged: it is not a shared library"
    if (data[4:6], data[18:20]) != (elf_header[4:6], elf_header[18:20]):
        return f"{path} is for another processor architecture"
    # Without a digest, as after `strip`: the section table is the end of a file.
    (table,), (size, count) = struct.unpack_from("=Q", data, 40), struct.unpack_from("=HH", data, 58)
    if len(data) < table + size * count:
        return f"{path} is damaged: {len(data)} of {table + size * count} bytes"
    return None


def _open(path: Path) -> LibraryLoad:
    if cause := fault(path):
        return LibraryLoad(None, f"{cause}; install the package again")
    try:
        handle = ctypes.CDLL(str(path))
        version = handle.hc_version()
    except (OSError, AttributeError) as error:
        return LibraryLoad(None, f"{path} does not load: {error}")
    if version != ABI_VERSION:
        return LibraryLoad(
            None, f"{path} has ABI {version}, this code expects {ABI_VERSION}; install the package again"
        )
    try:
        declare(handle)
    except AttributeError as error:
        return LibraryLoad(None, f"{path} lacks a function: {error}; install the package again")
    return LibraryLoad(handle, str(path))
