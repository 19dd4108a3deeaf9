"""Recorded operators: each step passes the arguments of a direct call, and execution stops at the first failure."""

import ctypes
import re
import threading
from array import array
from functools import cache
from pathlib import Path

import pytest
import torch

from dithc.engine import native
from dithc.engine.hcops.c import matrix, vector
from dithc.engine.hcops.c.library import functions, run_recorded, sequence
from dithc.engine.native import signatures
from dithc.engine.native.call_sequences import STEPS

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"no C kernels: {native.load_library().reason}")

HEADER = (Path(__file__).parents[3] / "kernels/include/hcops.h").read_text()
SOURCE = (Path(__file__).parents[3] / "kernels/sequence.c").read_text()
N, T, D, HEADS = 2, 5, 8, 2


@cache  # recorded tensors must live until they run
def _randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _constants() -> tuple[torch.Tensor, ...]:
    """Return cos, sin, and the weights of q and k of `rotate_heads`."""
    half = D // HEADS // 2
    return _randn(T, half), _randn(T, half, seed=1), _randn(2 * half), _randn(2 * half, seed=1)


BF16 = torch.bfloat16
STREAM, ROWS, QKV = (N, T, D), (N, D), (N, T, 3 * D)
# A call of each function that a sequence supports, with arguments of different types and sizes, so that wrong positions
# are detected.
CALLS = {
    "hc_gemm": lambda: matrix.linear_forward(_randn(*STREAM), _randn(7, D), _randn(7), BF16),
    "hc_adaln_forward": lambda: vector.adaln_forward(
        _randn(*STREAM), _randn(*ROWS, dtype=BF16), _randn(*ROWS, dtype=BF16, seed=1), 0.25, BF16
    ),
    "hc_adaln_backward": lambda: vector.adaln_backward(
        *(_randn(*STREAM, dtype=BF16), _randn(*STREAM), _randn(*ROWS, dtype=BF16)),
        *(_randn(N, T), _randn(N, T, seed=1), _randn(*STREAM, seed=1)),
    ),
    "hc_gate_residual_backward": lambda: vector.gate_residual_backward(
        _randn(*STREAM), _randn(*ROWS, dtype=BF16), _randn(*STREAM, dtype=BF16), dtype=BF16
    ),
    "hc_attention_forward": lambda: matrix.attention_forward(_randn(*QKV, dtype=BF16), HEADS),
    "hc_attention_backward": lambda: matrix.attention_backward(
        _randn(*STREAM), _randn(*QKV, dtype=BF16), _randn(*STREAM, dtype=BF16), _randn(N, HEADS, T), HEADS
    ),
    "hc_map": lambda: vector.gelu_forward(_randn(*STREAM)),
    "hc_map_backward": lambda: vector.silu_backward(_randn(*STREAM, dtype=BF16), _randn(*STREAM)),
    "hc_swiglu_forward": lambda: vector.swiglu_forward(_randn(*STREAM, dtype=BF16)),
    "hc_swiglu_backward": lambda: vector.swiglu_backward(_randn(N, T, D // 2, dtype=BF16), _randn(*STREAM)),
    "hc_rotate_heads_forward": lambda: matrix.rotate_heads_forward(
        _randn(*QKV, dtype=BF16), HEADS, 0.25, *_constants()
    ),
    "hc_rotate_heads_backward": lambda: matrix.rotate_heads_backward(
        _randn(*QKV, dtype=BF16), _randn(*QKV, dtype=BF16, seed=1), HEADS, 0.25, *_constants()
    ),
    "hc_attention_heads_forward": lambda: _attended(),
}


def _attended() -> torch.Tensor:
    query, key, value, out = (_randn(N, HEADS, T, D // HEADS, dtype=BF16, seed=seed) for seed in range(4))
    lse = torch.empty(N, HEADS, T)
    arguments = matrix.attention_arguments(query, key, value, out, lse, 0.25)
    functions().hc_attention_heads_forward(native.context(), arguments)
    _kept.append((query, key, value, lse, arguments))
    return out


_kept: list[object] = []  # recorded tensors must live until they run


def test_step_numbers_match_the_header() -> None:
    found = {name: int(number) for name, number in re.findall(r"HC_STEP_(\w+) = (\d+)", HEADER)}
    assert [f"hc_{name.lower()}" for name in sorted(found, key=lambda name: found[name])] == list(STEPS) == list(CALLS)


@pytest.mark.parametrize("name", STEPS)
def test_step_word_count_matches_function_arguments(name: str) -> None:
    (words,) = re.findall(rf"\[HC_STEP_{name.removeprefix('hc_').upper()}\] = \{{\w+, (\d+)\}}", SOURCE)
    assert int(words) == len(signatures.STATUS_FUNCTIONS[name]) - 1


@pytest.mark.parametrize("name", STEPS)
def test_recorded_step_is_bitwise_equal_to_the_direct_call(name: str) -> None:
    with sequence():
        recorded = CALLS[name]()
    direct = CALLS[name]()
    torch.testing.assert_close(recorded, direct, rtol=0, atol=0)


def test_recorded_steps_run_in_order_at_the_end() -> None:
    x, weight = _randn(4, 6), _randn(6, 6)
    with sequence():
        out = torch.zeros(4, 6)
        first = matrix.linear_forward(x, weight, None, torch.float32)
        second = matrix.linear_forward(first, weight, None, torch.float32)
        out.copy_(first)  # its content before any kernel ran
        first_before = out.clone()
    torch.testing.assert_close(second, x @ weight.T @ weight.T)
    torch.testing.assert_close(first, x @ weight.T)
    assert not torch.equal(first_before, first)


def test_run_recorded_executes_pending_steps_before_torch_reads() -> None:
    x, weight = _randn(4, 6), _randn(6, 6)
    with sequence():
        first = matrix.linear_forward(x, weight, None, torch.float32)
        run_recorded()
        second = first @ weight.T
        third = matrix.linear_forward(second, weight, None, torch.float32)
    torch.testing.assert_close(third, x @ weight.T @ weight.T @ weight.T)


def test_failed_body_runs_no_steps_and_next_call_runs_immediately() -> None:
    x, results = _randn(3, 4), []

    def body() -> None:
        with sequence():
            results.append(vector.gelu_forward(x).zero_())
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        body()
    assert not results[0].any()
    torch.testing.assert_close(vector.gelu_forward(x), torch.nn.functional.gelu(x, approximate="tanh"))


def test_calls_of_other_threads_run_immediately_while_recording() -> None:
    x, found = _randn(3, 4), []
    with sequence():
        thread = threading.Thread(target=lambda: found.append(vector.gelu_forward(x).clone()))
        thread.start()
        thread.join()
    torch.testing.assert_close(found[0], torch.nn.functional.gelu(x, approximate="tanh"))


@pytest.mark.parametrize(
    "words", [[len(STEPS)], [-1], [0], [1, 0, 0]], ids=["unknown", "negative", "no words", "too few"]
)
def test_invalid_step_words_are_rejected(words: list[int]) -> None:
    handle, encoded, position = native.library(), array("q", words), ctypes.c_int64(-1)
    with pytest.raises(ValueError, match="hc_sequence: an argument that it does not take"):
        handle.hc_sequence(native.context(), encoded.buffer_info()[0], len(encoded), ctypes.byref(position))
    assert position.value == 0


def test_execution_stops_at_the_first_failed_step() -> None:
    x, out, results = _randn(3, 4), torch.zeros(3, 4), []

    def body() -> None:
        with sequence():
            results.append(vector.gelu_forward(x))
            functions().hc_gemm(native.context(), native.GemmArguments(-1))
            functions().hc_map(native.context(), vector.FUNCTIONS.index("gelu"), 12, x.data_ptr(), 0, out.data_ptr(), 0)

    with pytest.raises(ValueError, match="hc_gemm in hc_sequence: an argument that it does not take"):
        body()
    torch.testing.assert_close(results[0], torch.nn.functional.gelu(x, approximate="tanh"))
    assert not out.any()


def test_empty_sequence_is_accepted() -> None:
    assert native.library().hc_sequence(native.context(), ctypes.c_void_p(), 0, ctypes.byref(ctypes.c_int64())) == 0
    with sequence():
        pass
