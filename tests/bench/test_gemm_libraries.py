"""Third-party matrix products: equal results, computed by the named library."""

import ctypes.util
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from dithc.bench.gemm_libraries import LIBRARIES, libraries, make_linear, use_linear
from dithc.bench.operators import cases, ops
from dithc.bench.step.variants import VARIANTS
from dithc.engine import hcops
from dithc.model import DiT

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def require_library(name: str, dtype: str) -> None:
    if reason := LIBRARIES[name].skip_reason(dtype):
        pytest.skip(f"{name}, {dtype}: {reason}")


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


@pytest.mark.parametrize("rows", [(5,), (2, 3), (1,)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", LIBRARIES)
def test_linear_and_gradients_equal_float64(name, dtype, has_bias, rows):
    require_library(name, dtype)
    inputs = [random(*rows, 24, seed=0, dtype=TYPES[dtype]), random(40, 24, seed=1, dtype=TYPES[dtype])]
    if has_bias:
        inputs.append(random(40, seed=2, dtype=TYPES[dtype]))
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    y, truth = make_linear(LIBRARIES[name])(*inputs), F.linear(*exact)
    dy = random(*rows, 40, seed=3, dtype=TYPES[dtype]).detach()
    gradients, exact_gradients = torch.autograd.grad(y, inputs, dy), torch.autograd.grad(truth, exact, dy.double())
    tolerance = 1e-5 if dtype == "fp32" else 2e-2
    for got, expected in zip([y, *gradients], [truth, *exact_gradients], strict=True):
        assert got.dtype is TYPES[dtype]
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("linear", [*LIBRARIES, "dithc"])
def test_model_gradients_equal_the_reference_with_any_linear_library(linear, use_backend):
    use_backend("c")
    if linear != "dithc":
        require_library(linear, "fp32")
    model = DiT.from_preset("DiT-S/2", depth=2, hidden_size=48, num_heads=2, input_size=8, num_classes=3)
    for index, parameter in enumerate(model.parameters()):
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(index))
    inputs = random(2, 4, 8, 8, seed=0).detach(), torch.tensor([3, 500]), torch.tensor([1, 2])

    def gradients() -> list[torch.Tensor]:
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return list(torch.autograd.grad(model(*inputs).square().mean(), weights))

    with hcops.use("reference"):
        truth = gradients()
    with use_linear(hcops.linear if linear == "dithc" else make_linear(LIBRARIES[linear])):
        assert {row["backend"] for row in hcops.describe_kernels() if row["op"] == "attention"} == {"c"}
        found = gradients()
    for got, expected in zip(found, truth, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)


def count_calls(name: str) -> int:
    """Count the products of one layer, forward and backward, that the library itself reports."""
    program = f"""
import torch
from dithc.bench.gemm_libraries import LIBRARIES, make_linear
x, w = torch.randn(64, 32, requires_grad=True), torch.randn(96, 32, requires_grad=True)
with torch.backends.mkldnn.verbose(1), torch.backends.mkl.verbose(1):
    make_linear(LIBRARIES[{name!r}])(x, w, torch.zeros(96)).sum().backward()
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    patterns = {"onednn": ("primitive,exec,cpu,inner_product", "primitive,exec,cpu,matmul"), "torch-blas": ("SGEMM(",)}
    return sum(any(part in line for part in patterns[name]) for line in output.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onednn", "torch-blas"])
def test_products_execute_in_the_named_library(name):
    require_library(name, "fp32")
    if name == "torch-blas" and not torch.backends.mkl.is_available():
        pytest.skip("this PyTorch has no MKL that could tell of its calls")
    assert name == "onednn" or "mkl" in LIBRARIES[name].describe()
    assert count_calls(name) == 3


def test_library_other_than_openblas_is_skipped_with_a_reason(monkeypatch):
    monkeypatch.setenv(libraries.OPENBLAS_VARIABLE, ctypes.util.find_library("c") or "libc.so.6")
    libraries._openblas.cache_clear()
    for library in (LIBRARIES["openblas"], VARIANTS["openblas"]):
        assert "is not OpenBLAS" in (library.skip_reason("fp32") or "")
    libraries._openblas.cache_clear()


def test_table_4_has_a_column_per_available_library():
    case = cases.gemm("DiT-S/2", "bf16", tuple(LIBRARIES))[0]()
    able = {name for name, library in LIBRARIES.items() if library.skip_reason("bf16") is None}
    assert set(case.runs) == {"hcops", "eager"} | able
    assert set(ops.describe_libraries(LIBRARIES, ("bf16",))["openblas"]) == {"description", "bf16"}
