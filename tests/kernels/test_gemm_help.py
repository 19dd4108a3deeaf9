"""Threads that are done early compute rows of the others: every row once, and the same bits as without them."""

import threading

import pytest
import torch

from dithc import native
from dithc.hcops import c_backend

if native.library() is None:
    pytest.skip(f"C kernels: {native.load().reason}", allow_module_level=True)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1000, 500, 300), (257, 1900, 900), (65, 130, 2000)])
def test_product_has_the_same_bits_whoever_is_held_up(threads, rows, columns, depth):
    """More threads than cores and a busy one beside them: some are always held up, and others take their rows."""
    torch.manual_seed(rows)
    x, weight, dy = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(rows, columns)
    bias, needs, stop = torch.randn(columns), (True, True, True), threading.Event()

    def products():
        return [
            c_backend.linear_forward(x, weight, bias, torch.float32),
            *c_backend.linear_backward(dy, x, weight, True, needs),
        ]

    threads(1)
    expected = products()
    disturber = threading.Thread(target=lambda: [sum(range(20_000)) for _ in iter(stop.is_set, True)])
    disturber.start()
    try:
        threads(5)
        for _ in range(15):
            for found, wanted in zip(products(), expected, strict=True):
                assert torch.equal(found, wanted)
    finally:
        stop.set()
        disturber.join()
    assert torch.allclose(expected[0].double(), x.double() @ weight.double().T + bias, atol=1e-3)
