"""Numba back end: functions against float64, inf and nan, the same bits for any number of threads, and processes.

`tests/engine/hcops/autograd/test_custom_ops.py` compares every operator and gradient with float64.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("numba", reason="the Numba back end needs numba, which is not installed")

from dithc.engine.hcops import reference
from dithc.engine.hcops.checks import AdamwTensors
from dithc.engine.hcops.numba import operators as ops
from dithc.engine.hcops.numba import threads as numba_threads
from dithc.engine.hcops.numba import vector
from dithc.engine.hcops.numba.compiler import KernelEntry
from dithc.engine.native import AdamwSettings
from tests.engine.hcops.autograd.test_custom_ops import CASES, make
from tests.engine.native.scripts import run_script

FP32, BF16 = torch.float32, torch.bfloat16
SMALLEST = 2.0**-149  # smallest fp32 number above 0, an error that every result may have
BOTH = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])


@pytest.fixture(autouse=True)
def _seed_and_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)  # does not divide any size here
    monkeypatch.setattr(numba_threads, "ELEMENTS_PER_THREAD", 1)  # small tensors are split among threads too
    yield
    torch.set_num_threads(threads)


def epsilon(dtype: torch.dtype) -> float:
    """Return the largest relative error of a rounding to `dtype`."""
    return torch.finfo(dtype).eps / 2


def assert_near(
    got: Tensor, exact: Tensor, *, terms: float, size: Tensor | float, dtype: torch.dtype | None = None
) -> None:
    """|got - exact| <= terms roundings of fp32 of `size`, the sum of magnitudes, and one to the result's type."""
    assert got.shape == exact.shape
    dtype = dtype or got.dtype
    denormal = 2.0**-133 if dtype == BF16 else SMALLEST  # distance of the numbers next to 0
    bound = terms * epsilon(FP32) * size + 1.01 * epsilon(dtype) * exact.abs() + denormal
    error = (got.double() - exact).abs()
    assert bool((error <= bound).all()), f"{float((error / bound).max())} times the bound"


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int16 if tensor.dtype == BF16 else torch.int32)


def gradients(outputs: Tensor, dout: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    return torch.autograd.grad(outputs, inputs, dout.double())


def doubles(*tensors: Tensor) -> list[Tensor]:
    return [tensor.double().requires_grad_() for tensor in tensors]


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("name", CASES)
def test_results_are_bitwise_equal_for_any_number_of_threads(name: str, use_backend: Callable[[str], None]) -> None:
    use_backend("numba")
    leaves, _ = make(CASES[name], len(CASES[name].shapes) - 1, "fp32")
    found = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        out = CASES[name].call(*leaves)
        found.append([out.detach(), *torch.autograd.grad(out, leaves, out.detach())])
    assert all(torch.equal(bits(a), bits(b)) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_weight_gradient_is_written_or_added_to_the_given_buffer() -> None:
    dy, x, weight, out = torch.randn(50, 9), torch.randn(50, 11), torch.randn(9, 11), torch.full((9, 11), torch.nan)
    dx, dw, db = ops.linear_backward(dy, x, weight, True, (False, True, False), out)
    assert dx is None
    assert db is None
    assert dw is out
    once = out.clone()
    assert_near(once, dy.double().T @ x.double(), terms=52, size=dy.abs().double().T @ x.abs().double())
    ops.linear_backward(dy, x, weight, False, (False, True, True), out, accumulate=True)
    assert_near(out, 2 * once.double(), terms=60, size=dy.abs().double().T @ x.abs().double())


def test_nan_and_inf_propagate_as_in_torch_linear() -> None:
    x, weight = torch.randn(40, 20), torch.randn(50, 20)
    x[3, 4], weight[7, 2] = torch.nan, torch.inf
    y = ops.linear_forward(x, weight, None, FP32)
    assert y[3].isnan().all()
    expected = F.linear(x, weight)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isinf(), expected.isinf())


def adversarial() -> Tensor:
    """Return all magnitudes of fp32 with both signs, including denormals, dense where the functions bend."""
    powers = 2.0 ** torch.linspace(-149, 127.9, 3001, dtype=torch.float64)
    dense = torch.linspace(0, 110, 20011, dtype=torch.float64)
    magnitudes = torch.cat([powers, dense]).float()
    return torch.cat([magnitudes, -magnitudes])


FUNCTIONS = {
    # Far left the result is e^z, and an error of z counts |z| times: 3 roundings of z, 8 of what follows.
    "silu": (vector.silu_forward, F.silu, lambda x: 8.0),
    "gelu": (vector.gelu_forward, gelu, lambda x: 8.0 + 3.0 * (1.6 * x.abs() * (1 + 0.045 * x * x)).clamp(max=110)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_matches_float64_over_the_fp32_range(name: str) -> None:
    function, exact, terms = FUNCTIONS[name]
    x = adversarial()
    expected = exact(x.double())
    if name == "gelu":  # written with tanh, float64 itself cancels far left
        z = 2 * (2 / torch.pi) ** 0.5 * (x.double() + 0.044715 * x.double() ** 3)
        expected = x.double() * torch.sigmoid(z)
    got = function(x)
    finite = expected.abs() <= torch.finfo(FP32).max
    assert torch.equal(got[~finite].double(), expected[~finite].float().double())
    # Below the normal numbers e^-|x| has fewer bits, and x multiplies what is lost.
    size = expected.abs() + 2 * SMALLEST / epsilon(FP32) * (x.abs().double().clamp(max=110) + 1)
    assert_near(got[finite], expected[finite], terms=1, size=(terms(x.double()) * size)[finite])


@BOTH
@pytest.mark.parametrize(("name", "exact"), [("gelu", gelu), ("silu", F.silu)])
def test_function_gradient_matches_float64_autograd(
    name: str, exact: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = torch.cat([adversarial(), torch.randn(1000)]).to(dtype)
    x = x[x.abs() < 1e15]  # float64's own formula gives nan where x^2 overflows
    dy = torch.randn(x.shape).to(dtype)
    dx = getattr(vector, f"{name}_backward")(dy, x)
    (wide,) = doubles(x)
    (expected,) = gradients(exact(wide), dy, [wide])
    # sigmoid + x sigmoid' z': the first is at most 1, the second at most 1.2 before they are added.
    assert_near(dx, expected, terms=16, size=1.2 * dy.double().abs())
    forward = getattr(vector, f"{name}_forward")(x)
    assert_near(forward, exact(x.double()), terms=16, size=x.double().abs().clamp(max=1e30))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inf_and_nan_inputs_match_torch(name: str) -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e30, -1e30])
    function, exact, _ = FUNCTIONS[name]
    torch.testing.assert_close(function(x), exact(x), equal_nan=True, rtol=1e-6, atol=0)
    assert torch.equal(torch.signbit(function(x)[3:5]), torch.signbit(exact(x)[3:5]))
    dx = getattr(vector, f"{name}_backward")(torch.ones(7), x)
    assert dx[:3].isnan().all()
    torch.testing.assert_close(dx[3:], torch.tensor([0.5, 0.5, 1.0, 0.0]))


def test_bf16_is_rounded_to_nearest_even_and_keeps_nan() -> None:
    patterns = torch.randint(-(2**31), 2**31, (100_000,), dtype=torch.int64).to(torch.int32).view(FP32)
    patterns = torch.cat([patterns, torch.tensor([0x7F800001, 0x7FFFFFFF, 0x3F808000, 0x3F818000]).int().view(FP32)])
    shadow, weight, zeros = torch.empty(patterns.shape, dtype=BF16), patterns.clone(), torch.zeros_like(patterns)
    tensors = AdamwTensors([weight], [zeros], [zeros.clone()], [zeros.clone()], None, [shadow])
    vector.adamw_forward(tensors, AdamwSettings(0.0, 0.9, 0.99, 1e-8, 0.0, 1.0, 1, 0.0))
    expected = weight.to(BF16)
    assert torch.equal(shadow.isnan(), expected.isnan())
    assert torch.equal(bits(shadow)[~expected.isnan()], bits(expected)[~expected.isnan()])


def test_attention_handles_extreme_scores_and_confines_nan_to_one_query() -> None:
    qkv = torch.randn(1, 40, 3 * 16)
    qkv[..., :32] *= 100  # one key dominates: scores in the thousands neither overflow nor lose the largest
    out, lse = ops.attention_forward(qkv, 1)
    torch.testing.assert_close(out.double(), reference.attention(qkv.double(), 1), rtol=1e-2, atol=1e-2)
    assert lse.isfinite().all()
    qkv[0, 7, 3] = torch.nan  # one query
    out, _ = ops.attention_forward(qkv, 1)
    assert out[0, 7].isnan().all()
    assert not out[0, :7].isnan().any()


def test_sum_of_squares_matches_float64() -> None:
    tensors = [torch.randn(100_003), torch.empty(0), torch.full((7,), 1e30), torch.randn(1)]
    expected = float(sum(tensor.double().square().sum() for tensor in tensors))
    assert vector.sum_of_squares_forward(tensors) == pytest.approx(expected, rel=1e-13)
    assert vector.sum_of_squares_forward([]) == 0
    assert vector.sum_of_squares_forward([torch.tensor([torch.inf])]) == float("inf")


SETTINGS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def test_adamw_average_and_shadow_match_float64_torch() -> None:
    weights = [torch.randn(3000), torch.randn(5, 7), torch.randn(1)]
    wide = [weight.double().requires_grad_() for weight in weights]
    averages, shadows = [weight.clone() for weight in weights], [torch.empty(w.shape, dtype=BF16) for w in weights]
    exact_averages = [average.double() for average in averages]
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    optimizer = torch.optim.AdamW(wide, **SETTINGS)
    for step in range(1, 6):
        gradients = [torch.randn_like(weight) for weight in weights]
        tensors = AdamwTensors(weights, gradients, first, second, averages, shadows)
        vector.adamw_forward(tensors, AdamwSettings(0.01, 0.9, 0.95, 1e-8, 0.1, 0.5, step, 0.9))
        for weight, gradient in zip(wide, gradients, strict=True):
            weight.grad = 0.5 * gradient.double()
        optimizer.step()
        for average, weight in zip(exact_averages, wide, strict=True):
            average.lerp_(weight.detach(), 0.1)
        for i, weight in enumerate(wide):
            # 5 roundings of the weight per step, and about 20 of an update of a few times lr at most
            size = weight.detach().abs() + 5 * SETTINGS["lr"]
            assert_near(weights[i], weight.detach(), terms=25 * step, size=size)
            assert_near(averages[i], exact_averages[i], terms=30 * step, size=size)
            assert torch.equal(shadows[i], weights[i].to(BF16))


def test_first_use_logs_compilation_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(begin: int, end: int, x: Tensor, out: Tensor) -> None:
        for i in range(begin, end):
            out[i] = x[i]

    monkeypatch.setattr(KernelEntry, "_announced", False)
    monkeypatch.setattr("dithc.engine.hcops.numba.compiler.CACHE_FOLDER", None)
    kernel, x = KernelEntry(copied), torch.randn(9)
    out = torch.empty(9)
    with caplog.at_level(logging.INFO):
        numba_threads.run(kernel, 9, x.numpy(), out.numpy(), elements=9)
        numba_threads.run(kernel, 9, x.numpy(), out.numpy(), elements=9)
    assert torch.equal(out, x)
    assert "compiles operators at their first use" in caplog.text
    assert caplog.text.count("Numba compiled copied in") == 1


@pytest.mark.parametrize("failing", [0, 1, 2], ids=["the caller's part", "another", "the last"])
def test_error_in_any_part_reaches_the_caller_after_all_parts_ended(failing: int) -> None:
    done = []

    def fail() -> None:
        raise OSError("broken")

    def end_late(number: int) -> None:
        time.sleep(0.2 * number)  # the last part ends long after another part failed
        done.append(number)

    parts = [fail if number == failing else partial(end_late, number) for number in range(3)]
    with pytest.raises(OSError, match="broken"):
        numba_threads.spread(parts)
    assert sorted(done) == [number for number in range(3) if number != failing]


def test_rejected_parts_run_once_on_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class EndingExecutor(ThreadPoolExecutor):
        """Executor that accepts one part, then ends, as when the interpreter ends."""

        def submit(self, *arguments: Any, **named: Any) -> Any:
            future = super().submit(*arguments, **named)
            self.shutdown(wait=False)
            return future

    monkeypatch.setattr(numba_threads._pool, "executor", EndingExecutor(3))
    monkeypatch.setattr(numba_threads._pool, "size", 3)
    done: list[int] = []
    numba_threads.spread([partial(done.append, i) for i in range(4)])
    assert sorted(done) == [0, 1, 2, 3]


def test_concurrent_callers_produce_correct_results() -> None:
    inputs = [torch.randn(50, 40) for _ in range(8)]
    weight, bias = torch.randn(30, 40), torch.randn(30)
    expected = [ops.linear_forward(x, weight, bias, FP32) for x in inputs]
    with ThreadPoolExecutor(4) as callers:
        for _ in range(20):
            found = callers.map(lambda x: ops.linear_forward(x, weight, bias, FP32), inputs)
            assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


PROGRAM = """
import logging, os, sys
logging.basicConfig(level=logging.INFO)
import torch
torch.set_num_threads(2)
before = torch.__config__.parallel_info()
from dithc.engine.hcops.numba import threads, vector
threads.ELEMENTS_PER_THREAD = 1
x = torch.randn(8192)
expected = vector.silu_forward(x)
from numba.np.ufunc import parallel
assert not parallel._is_initialized, "Numba's own threads run"
assert torch.__config__.parallel_info() == before
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(vector.silu_forward(x), expected) else 3)
assert os.waitpid(child, 0)[1] == 0, "the child of a fork has no threads"
print("fine")
"""


@pytest.mark.slow
def test_unwritable_cache_folder_is_logged_with_fix() -> None:
    result = run_script(PROGRAM, NUMBA_CACHE_DIR="/dev/null/nowhere")
    assert result.stdout == "fine\n", result.stderr
    assert "not kept" in result.stderr
    assert "set NUMBA_CACHE_DIR" in result.stderr


@pytest.mark.slow
def test_second_process_reuses_compiled_kernels(tmp_path: Path) -> None:
    first, second = (run_script(PROGRAM, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert (first.stdout, second.stdout) == ("fine\n", "fine\n"), first.stderr + second.stderr
    assert "Numba compiled silu_forward" in first.stderr
    assert "Numba compiled silu_forward" not in second.stderr
