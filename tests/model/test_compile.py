"""Tests of a compiled model: one graph of the fast operators with equal results."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.model.networks import shaken


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    """Reset torch's compiler, which compiles a function at most 8 times per process."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(model: nn.Module, forward: Callable[..., Tensor], dtype: str) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, 8, 8, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
        out = forward(x, torch.tensor([3, 700]), torch.tensor([1, 2]))
    out.float().square().mean().backward()
    return out.detach().float(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("backend", ["c", "numba", "reference"])
@pytest.mark.slow
def test_compiled_model_is_one_graph_with_the_same_numbers(backend, dtype, use_backend) -> None:
    use_backend(backend)
    model = shaken()
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    out, expected = gradients(model, model, dtype)
    traced, found = gradients(other, compiled, dtype)
    tolerance = 1e-5 if dtype == "fp32" else 2e-2
    torch.testing.assert_close(traced, out, rtol=tolerance, atol=tolerance)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_graph_holds_the_operators_of_dithc(use_backend) -> None:
    use_backend("numba")
    seen: list[str] = []

    def look(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(shaken(), backend=look, fullgraph=True)(torch.randn(1, 4, 8, 8), torch.tensor([3]), torch.tensor([1]))
    wanted = {"adaln", "attention", "linear", "mlp", "linear_gate_residual", "silu", "patchify", "unpatchify"}
    assert wanted <= {name.removeprefix("dithc.").partition(".")[0] for name in seen}


@pytest.mark.slow
def test_default_compiler_takes_the_model(use_backend) -> None:
    use_backend("c")
    model = shaken()
    other = copy.deepcopy(model)
    out, expected = gradients(model, model, "fp32")
    compiled, found = gradients(other, torch.compile(other, fullgraph=True), "fp32")
    torch.testing.assert_close(compiled, out, rtol=1e-4, atol=1e-5)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
