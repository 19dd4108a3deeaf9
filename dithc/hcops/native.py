"""The C kernels through ctypes: the one file that loads the library and knows its functions."""

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from dithc.log import logger, problem

log = logger(__name__)

# Equal to HC_ABI_VERSION of the header that the functions below were written for.
ABI_VERSION = 1
FOLDER = Path(__file__).parent
ISA_VARIABLE = "HCOPS_ISA"


@dataclass(frozen=True)
class Loading:
    """What came of loading the library: the library, or None and the reason."""

    library: ctypes.CDLL | None
    reason: str


@cache
def load() -> Loading:
    """Loads the library once; logs when there is none, because then PyTorch's operators are used instead."""
    loading = _open(FOLDER)
    if loading.library is None:
        log.warning("C kernels are off, PyTorch's operators are used: %s", loading.reason)
    return loading


def library() -> ctypes.CDLL | None:
    """The loaded library, or None; `load().reason` says why."""
    return load().library


@cache
def isa() -> str:
    """Name of the instruction set that kernels are chosen for: the CPU's best, or what HCOPS_ISA names.

    Raises:
        UserError: HCOPS_ISA names an instruction set that does not exist or that this CPU lacks.
    """
    handle = library()
    if handle is None:
        return "none"
    return str(handle.hc_isa_name(_isa_number(handle)).decode())


def kernels() -> list[tuple[str, str]]:
    """The kernel table: (kernel, instruction set), best first within an operator; empty without a library."""
    handle = library()
    lines: list[tuple[str, str]] = []
    name, number = ctypes.c_char_p(), ctypes.c_int()
    while handle and handle.hc_kernel(len(lines), ctypes.byref(name), ctypes.byref(number)) == 0:
        lines.append(((name.value or b"").decode(), handle.hc_isa_name(number).decode()))
    return lines


def sum_of_squares(tensor: torch.Tensor) -> float:
    """Sum of the squares of a contiguous fp32 tensor on the CPU, accumulated in float64.

    Raises:
        ValueError: another dtype, another device, or gaps between the elements.
    """
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"sum_of_squares: got {tensor.dtype} on {tensor.device}, contiguous: {tensor.is_contiguous()}; "
            "expected a contiguous torch.float32 tensor on the CPU; convert it first"
        )
    handle = library()
    if handle is None:
        return float(tensor.detach().double().square().sum())
    total = ctypes.c_double()
    status = handle.hc_sumsq_f32(_isa_number(handle), tensor.data_ptr(), tensor.numel(), ctypes.byref(total))
    assert status == 0, f"hc_sumsq_f32 returned {status}"
    return total.value


def _open(folder: Path) -> Loading:
    paths = [path for suffix in EXTENSION_SUFFIXES if (path := folder / f"_kernels{suffix}").exists()]
    if not paths:
        return Loading(None, f"no library in {folder}: no C compiler at installation; install one, then `make env`")
    try:
        handle = ctypes.CDLL(str(paths[0]))
    except OSError as error:
        return Loading(None, f"{paths[0]} does not load: {error}")
    version = handle.hc_version()
    if version != ABI_VERSION:
        return Loading(
            None, f"{paths[0]} has ABI {version}, this code expects {ABI_VERSION}; install the package again"
        )
    handle.hc_isa_name.argtypes = [ctypes.c_int]
    handle.hc_isa_name.restype = ctypes.c_char_p
    handle.hc_isa_detect.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)]
    handle.hc_kernel.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_int)]
    handle.hc_sumsq_f32.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_double)]
    return Loading(handle, str(paths[0]))


@cache
def _isa_number(handle: ctypes.CDLL) -> int:
    wanted, number = os.environ.get(ISA_VARIABLE, ""), ctypes.c_int()
    if handle.hc_isa_detect(wanted.encode(), ctypes.byref(number)) != 0:
        best = ctypes.c_int()
        handle.hc_isa_detect(None, ctypes.byref(best))
        raise problem(
            f"environment variable {ISA_VARIABLE}",
            got=wanted,
            expected=f"ref, or an instruction set of this CPU up to {handle.hc_isa_name(best).decode()}",
            remedy=f"correct or unset {ISA_VARIABLE}",
        )
    return number.value
