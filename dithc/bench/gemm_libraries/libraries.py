"""Discovery and calls of matrix product libraries, and reasons why they are unavailable.

Legend: M, K, N sizes of C (M, N) = A (M, K) B (K, N).
"""

import ctypes
import ctypes.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from dithc.bench.rooflines import Precision

OPENBLAS_VARIABLE = "DITHC_OPENBLAS_LIBRARY"
"""Environment variable with the path of OpenBLAS's shared library, if the system's linker does not find it."""

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]

# From <cblas.h>.
_ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE = 101, 111, 112


@dataclass(frozen=True)
class GemmLibrary:
    """Library of matrix products.

    Attributes:
        describe: function that describes the library.
        product: C (M, N) of A (M, K), B (K, N) and an optional bias (N) of one type; A and B are dense or transposed
            dense.
        skip_reason: function that returns the reason why a type is unsupported here, or None.
    """

    describe: Callable[[], str]
    product: Product
    skip_reason: Callable[[Precision], str | None]


def _torch_product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def _describe_torch() -> str:
    """Describe PyTorch's choice: the BLAS of its build for fp32, oneDNN for bf16."""
    config = torch.__config__.show()
    blas = [part.strip().removeprefix("BLAS_INFO=") for part in config.split(",") if "BLAS_INFO=" in part]
    return f"PyTorch's choice: {blas[0] if blas else 'unknown'} for fp32, oneDNN for bf16 if the CPU supports it"


def _onednn_product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Compute an inner product with a weight (N, K). A transposed A is copied first, within the measured time."""
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")  # type: ignore[no-any-return]


def _describe_onednn() -> str:
    versions = [line.strip("- ") for line in torch.__config__.show().splitlines() if "MKL-DNN" in line]
    return versions[0] if versions else "oneDNN"


def _onednn_skip_reason(dtype: Precision) -> str | None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return "this PyTorch was built without oneDNN"
    if dtype == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "oneDNN has no bf16 on this CPU"
    return None


@cache
def _openblas() -> ctypes.CDLL | str:
    name = os.environ.get(OPENBLAS_VARIABLE) or ctypes.util.find_library("openblas")
    if name is None:
        return f"no OpenBLAS: apt-get install libopenblas0-pthread, or set {OPENBLAS_VARIABLE} to its shared library"
    try:
        library = ctypes.CDLL(name)
        library.cblas_sgemm.argtypes = (
            *(ctypes.c_int,) * 6,
            *(ctypes.c_float, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
            *(ctypes.c_float, ctypes.c_void_p, ctypes.c_int),
        )
        library.cblas_sgemm.restype = None
        library.openblas_get_config.restype = ctypes.c_char_p
        library.openblas_set_num_threads.argtypes = (ctypes.c_int,)
    except (OSError, AttributeError) as error:
        return f"{name} is not OpenBLAS: {error}"
    return library


def _openblas_product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    library = _openblas()
    assert isinstance(library, ctypes.CDLL), library
    (rows, depth), columns = a.shape, b.shape[1]
    c = a.new_empty(rows, columns) if bias is None else bias.expand(rows, columns).contiguous()
    library.openblas_set_num_threads(torch.get_num_threads())
    library.cblas_sgemm(
        *(_ROW_MAJOR, *(_NO_TRANSPOSE if x.is_contiguous() else _TRANSPOSE for x in (a, b)), rows, columns, depth),
        *(1.0, a.data_ptr(), _leading_dimension(a), b.data_ptr(), _leading_dimension(b)),
        *(0.0 if bias is None else 1.0, c.data_ptr(), columns),
    )
    return c


def _leading_dimension(matrix: Tensor) -> int:
    return max(1, matrix.shape[1] if matrix.is_contiguous() else matrix.shape[0])


def _describe_openblas() -> str:
    library = _openblas()
    return library if isinstance(library, str) else library.openblas_get_config().decode().strip()


def _openblas_skip_reason(dtype: Precision) -> str | None:
    if isinstance(library := _openblas(), str):
        return library
    if dtype != "fp32":
        return "OpenBLAS multiplies only fp32"
    # Reading the count back proves that the call works. A single-threaded build is not comparable with other libraries.
    threads = torch.get_num_threads()
    library.openblas_set_num_threads(threads)
    count = library.openblas_get_num_threads()
    return None if count == threads else f"this OpenBLAS runs {count} of {threads} threads"


LIBRARIES: Mapping[str, GemmLibrary] = {
    "openblas": GemmLibrary(_describe_openblas, _openblas_product, _openblas_skip_reason),
    "torch-blas": GemmLibrary(_describe_torch, _torch_product, lambda dtype: None),
    "onednn": GemmLibrary(_describe_onednn, _onednn_product, _onednn_skip_reason),
}


def describe_libraries(names: Iterable[str], dtypes: Iterable[Precision]) -> dict[str, dict[str, str | None]]:
    """Describe each library, with the reason why it does not support a type here, or None."""
    reasons_of = {
        name: dict[str, str | None]({dtype: LIBRARIES[name].skip_reason(dtype) for dtype in dtypes}) for name in names
    }
    return {name: reasons | {"description": LIBRARIES[name].describe()} for name, reasons in reasons_of.items()}
