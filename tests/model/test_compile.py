"""Tests of a compiled model: one graph of the fast operators with equal results."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.model.networks import nonzero


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
def test_compiled_model_is_one_graph_and_matches_eager_gradients(backend, dtype, use_backend) -> None:
    use_backend(backend)
    model = nonzero()
    copied = copy.deepcopy(model)
    compiled = torch.compile(copied, backend="aot_eager", fullgraph=True)
    out, expected = gradients(model, model, dtype)
    traced, found = gradients(copied, compiled, dtype)
    tolerance = 1e-5 if dtype == "fp32" else 2e-2
    torch.testing.assert_close(traced, out, rtol=tolerance, atol=tolerance)
    for actual, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_compiled_graph_contains_the_dithc_operators(use_backend) -> None:
    use_backend("numba")
    targets: list[str] = []

    def spy(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(nonzero(), backend=spy, fullgraph=True)(torch.randn(1, 4, 8, 8), torch.tensor([3]), torch.tensor([1]))
    expected_ = {"adaln", "attention", "linear", "mlp", "linear_gate_residual", "silu", "patchify", "unpatchify"}
    assert expected_ <= {name.removeprefix("dithc.").partition(".")[0] for name in targets}


@pytest.mark.slow
def test_default_compiler_matches_eager_outputs_and_gradients(use_backend) -> None:
    use_backend("c")
    model = nonzero()
    copied = copy.deepcopy(model)
    out, expected = gradients(model, model, "fp32")
    compiled, found = gradients(copied, torch.compile(copied, fullgraph=True), "fp32")
    torch.testing.assert_close(compiled, out, rtol=1e-4, atol=1e-5)
    for actual, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-4)
