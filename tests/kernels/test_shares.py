"""Idle threads take over work of other threads: every piece is computed once, with the same bits."""

import threading

import pytest
import torch

from dithc.engine import native
from dithc.engine.hcops.c import matrix

if native.library() is None:
    pytest.skip(f"C kernels: {native.load_library().reason}", allow_module_level=True)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def busy_core():
    """Run a thread that occupies a core of the team."""
    stop = threading.Event()
    disturber = threading.Thread(target=lambda: [sum(range(20_000)) for _ in iter(stop.is_set, True)])
    disturber.start()
    yield
    stop.set()
    disturber.join()


def assert_same_bits(function, threads):
    """Run more threads than cores, so that some are always delayed and other threads take over their work."""
    threads(1)
    expected = function()
    threads(5)
    for _ in range(15):
        for found, exact in zip(function(), expected, strict=True):
            assert torch.equal(found, exact)
    return expected


@pytest.mark.sampled
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1000, 500, 300), (257, 1900, 900), (65, 130, 2000)])
def test_product_bits_do_not_depend_on_delayed_threads(threads, busy_core, rows, columns, depth):
    torch.manual_seed(rows)
    x, weight, dy = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(rows, columns)
    bias, needs = torch.randn(columns), (True, True, True)

    def products():
        return [
            matrix.linear_forward(x, weight, bias, torch.float32),
            *matrix.linear_backward(dy, x, weight, True, needs),
        ]

    expected = assert_same_bits(products, threads)
    assert torch.allclose(expected[0].double(), x.double() @ weight.double().T + bias, atol=1e-3)


@pytest.mark.sampled
@pytest.mark.parametrize(("images", "tokens", "heads", "width"), [(3, 256, 7, 64), (1, 1100, 2, 24), (40, 3, 3, 8)])
def test_attention_bits_do_not_depend_on_delayed_threads(threads, busy_core, images, tokens, heads, width):
    torch.manual_seed(tokens)
    qkv, dout = torch.randn(images, tokens, 3 * heads * width), torch.randn(images, tokens, heads * width)

    def both_directions():
        out, lse = matrix.attention_forward(qkv, heads)
        return out, lse, matrix.attention_backward(dout, qkv, out, lse, heads)

    out = assert_same_bits(both_directions, threads)[0]
    q, k, v = qkv.double().view(images, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    assert torch.allclose(out.double(), expected, atol=1e-5)
