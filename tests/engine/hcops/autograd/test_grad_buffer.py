"""Gradients of matrices are written to the flat buffer, and are correct for every use of autograd."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dithc.engine import hcops
from dithc.engine.hcops import blocks
from dithc.engine.hcops.kernel_registry import obstacle


@pytest.fixture(autouse=True)
def _fast(use_backend: Callable[[str], None]) -> None:
    torch.manual_seed(0)
    use_backend("c" if obstacle("c") is None else "numba")


class Layer(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return hcops.linear(input, self.weight, self.bias)


def flat(*shapes: tuple[int, int]) -> list[Parameter]:
    weights = [Parameter(torch.randn(shape)) for shape in shapes]
    hcops.optimizer.flat_gradients(weights)
    return weights


def is_flat(weight: Tensor) -> bool:
    return weight.grad is not None and weight.grad.data_ptr() == weight.flat_grad.data_ptr()


def torch_gradient(weight: Tensor, *inputs: Tensor) -> Tensor:
    """Return the gradient of the sum of squares of x @ weight^T over all inputs, by torch alone."""
    leaf = weight.detach().clone().requires_grad_()
    sum((x @ leaf.T).square().sum() for x in inputs).backward()
    return leaf.grad


def test_buffer_stores_each_gradient_at_a_page_boundary() -> None:
    weights = [Parameter(torch.randn(3, 5)), Parameter(torch.randn(40, 30))]
    buffer = hcops.optimizer.flat_gradients(weights)
    assert buffer.numel() == 3 * 1024
    assert [w.flat_grad.data_ptr() - buffer.data_ptr() for w in weights] == [0, 4096]
    assert [w.flat_grad.shape for w in weights] == [w.shape for w in weights]


def test_buffer_contains_only_trained_fp32_parameters() -> None:
    weights = [Parameter(torch.randn(2, 2), requires_grad=False), Parameter(torch.randn(2, 2).double())]
    assert hcops.optimizer.flat_gradients(weights).numel() == 0
    assert not any(hasattr(weight, "flat_grad") for weight in weights)


def test_micro_batches_add_up_in_place() -> None:
    (weight,) = flat((4, 3))
    inputs = [torch.randn(5, 3) for _ in range(3)]
    for x in inputs:
        hcops.linear(x, weight).square().sum().backward()
        assert is_flat(weight)
    torch.testing.assert_close(weight.grad, torch_gradient(weight, *inputs))
    weight.grad = None
    hcops.linear(inputs[0], weight).square().sum().backward()
    assert is_flat(weight)
    torch.testing.assert_close(weight.grad, torch_gradient(weight, inputs[0]))


def test_bias_gradient_of_a_micro_batch_is_not_counted_twice() -> None:
    (weight,) = flat((4, 3))
    bias = Parameter(torch.randn(4))
    for _ in range(2):
        hcops.linear(torch.randn(5, 3), weight, bias).sum().backward()
    torch.testing.assert_close(bias.grad, torch.full((4,), 10.0))


def test_zeroed_gradient_accumulates_without_old_values() -> None:
    (weight,) = flat((4, 3))
    x = torch.randn(5, 3)
    for _ in range(2):
        hcops.linear(x, weight).square().sum().backward()
        weight.grad.zero_()
    hcops.linear(x, weight).square().sum().backward()
    torch.testing.assert_close(weight.grad, torch_gradient(weight, x))


def test_weight_used_twice_in_one_pass_gets_both_gradients() -> None:
    (weight,) = flat((4, 3))
    inputs = [torch.randn(5, 3) for _ in range(2)]
    for count in (1, 2):
        sum(hcops.linear(x, weight).square().sum() for x in inputs).backward()
        torch.testing.assert_close(weight.grad, count * torch_gradient(weight, *inputs))


def test_existing_gradient_is_accumulated_and_not_replaced() -> None:
    (weight,) = flat((4, 3))
    x = torch.randn(5, 3)
    weight.grad = torch.ones(4, 3)
    hcops.linear(x, weight).square().sum().backward()
    torch.testing.assert_close(weight.grad, torch_gradient(weight, x) + 1)


def test_grad_view_is_not_reused_while_a_gradient_reference_exists() -> None:
    weight, x = Parameter(torch.randn(4, 3)), torch.randn(5, 3)
    hcops.optimizer.assign_grad_view(weight, torch.empty(4, 3), accumulate=False)
    hcops.linear(x, weight).square().sum().backward()
    assert is_flat(weight)
    kept, before = weight.grad.view(-1)[:5], weight.grad.clone()
    for x in torch.randn(2, 5, 3):
        weight.grad = None
        hcops.linear(x, weight).square().sum().backward()
        assert not is_flat(weight)
        torch.testing.assert_close(weight.grad, torch_gradient(weight, x))
    assert torch.equal(kept, before.view(-1)[:5])
    del kept
    weight.grad = None
    hcops.linear(x, weight).square().sum().backward()
    assert is_flat(weight)


def test_captured_gradient_does_not_change_buffer_or_grad() -> None:
    (weight,) = flat((4, 3))
    x, other = torch.randn(5, 3), torch.randn(5, 3)
    hcops.linear(x, weight).square().sum().backward()
    (captured,) = torch.autograd.grad(hcops.linear(other, weight).square().sum(), weight)
    torch.testing.assert_close(captured, torch_gradient(weight, other))
    torch.testing.assert_close(weight.grad, torch_gradient(weight, x))
    assert captured.data_ptr() != weight.flat_grad.data_ptr()


def test_backward_for_other_inputs_does_not_change_the_buffer() -> None:
    (weight,) = flat((4, 3))
    x = torch.randn(5, 3, requires_grad=True)
    hcops.linear(x, weight).square().sum().backward()
    before = weight.grad.clone()
    hcops.linear(x, weight).square().sum().backward(inputs=[x])
    assert torch.equal(weight.grad, before)


def test_tensor_hook_receives_and_scales_only_the_new_gradient() -> None:
    (weight,) = flat((4, 3))
    x = torch.randn(5, 3)
    weight.register_hook(lambda gradient: 2 * gradient)
    for count in (1, 2):
        hcops.linear(x, weight).square().sum().backward()
        torch.testing.assert_close(weight.grad, 2 * count * torch_gradient(weight, x))


def test_failed_pass_does_not_corrupt_the_next_pass() -> None:
    (weight,) = flat((4, 3))
    x = torch.randn(5, 3, requires_grad=True)

    class Break(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return tensor.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        hcops.linear(Break.apply(x), weight).square().sum().backward()
    for _ in range(2):
        weight.grad = None
        hcops.linear(x, weight).square().sum().backward()
        torch.testing.assert_close(weight.grad, torch_gradient(weight, x.detach()))


def test_failed_product_preserves_gradient_and_buffer(monkeypatch) -> None:
    (weight,) = flat((4, 3))
    x = torch.randn(5, 3)
    hcops.linear(x, weight).square().sum().backward()
    before = weight.grad.clone()
    loss = hcops.linear(x, weight).square().sum()

    def fail(*_, **__):
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("dithc.engine.hcops.autograd.gradients.raw", lambda name: fail)
        with pytest.raises(MemoryError, match="no memory"):
            loss.backward()
    assert torch.equal(weight.grad, before)
    hcops.linear(x, weight).square().sum().backward()
    assert is_flat(weight)
    torch.testing.assert_close(weight.grad, 2 * before)


def test_zero_grad_frees_the_buffer_after_a_failed_pass() -> None:
    (weight,) = flat((4, 3))
    weight.register_post_accumulate_grad_hook(lambda _: None)
    hcops.linear(torch.randn(5, 3), weight).sum().backward()
    weight.flat_grad_pending = True  # as after a pass that failed after the product
    hcops.optimizer.zero_grad([weight])
    assert weight.grad is None
    hcops.linear(torch.randn(5, 3), weight).sum().backward()
    assert is_flat(weight)


def mlp(x: Tensor, weights: list[Tensor], *, residual: Tensor) -> Tensor:
    return blocks.fused.mlp(x, weights[0], None, weights[1], None, gate=torch.ones(2, 3), residual=residual)


def mlp_gradients(weights: list[Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [weight.detach().clone().requires_grad_() for weight in weights]
    for x in inputs:
        hidden = torch.nn.functional.gelu(x @ leaves[0].T, approximate="tanh")
        (x + hidden @ leaves[1].T).square().sum().backward()
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("mode", ["plain", "recomputed"])
def test_mlp_weight_gradients_accumulate_in_the_buffer(mode: str) -> None:
    weights, inputs = flat((7, 3), (3, 7)), [torch.randn(2, 5, 3) for _ in range(2)]
    for count, x in enumerate(inputs, start=1):
        leaf = x.clone().requires_grad_()
        if mode == "plain":
            out = mlp(leaf, weights, residual=leaf)
        else:
            out = checkpoint(lambda x: mlp(x, weights, residual=x), leaf, use_reentrant=False)
        out.square().sum().backward()
        for weight, expected in zip(weights, mlp_gradients(weights, *inputs[:count]), strict=True):
            assert is_flat(weight)
            torch.testing.assert_close(weight.grad, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("frozen", [0, 1])
def test_frozen_weight_of_an_mlp_gets_no_gradient(frozen: int) -> None:
    weights, x = flat((7, 3), (3, 7)), torch.randn(2, 5, 3)
    weights[frozen].requires_grad_(False)
    mlp(x, weights, residual=x).square().sum().backward()
    assert weights[frozen].grad is None
    torch.testing.assert_close(weights[1 - frozen].grad, mlp_gradients(weights, x)[1 - frozen], rtol=1e-5, atol=1e-4)


def test_failed_first_mlp_layer_preserves_second_layer_gradient(monkeypatch) -> None:
    weights, x = flat((7, 3), (3, 7)), torch.randn(2, 5, 3)
    mlp(x, weights, residual=x).square().sum().backward()
    before = [weight.grad.clone() for weight in weights]
    loss, calls = mlp(x, weights, residual=x).square().sum(), []

    def failing(name: str):
        calls.append(name)
        if calls.count("linear_backward") == 2:
            raise MemoryError("no memory")
        return hcops.backend.raw(name)

    with monkeypatch.context() as patch:
        patch.setattr("dithc.engine.hcops.autograd.gradients.raw", failing)
        with pytest.raises(MemoryError, match="no memory"):
            loss.backward()
    assert torch.equal(weights[0].grad, before[0])
    torch.testing.assert_close(weights[1].grad, 2 * before[1])
    mlp(x, weights, residual=x).square().sum().backward()
    torch.testing.assert_close(weights[0].grad, 2 * before[0])
    torch.testing.assert_close(weights[1].grad, 3 * before[1])
    assert all(is_flat(weight) for weight in weights)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers_write_to_the_buffer(reentrant: bool) -> None:
    first, second = flat((3, 3), (3, 3))
    x = torch.randn(5, 3, requires_grad=True)
    expected = [weight.detach().clone().requires_grad_() for weight in (first, second)]
    (x @ expected[0].T @ expected[1].T).square().sum().backward()
    for count in (1, 2):
        y = checkpoint(lambda x: hcops.linear(hcops.linear(x, first), second), x, use_reentrant=reentrant)
        y.square().sum().backward()
        for weight, exact in zip((first, second), expected, strict=True):
            assert is_flat(weight)
            torch.testing.assert_close(weight.grad, count * exact.grad, rtol=1e-5, atol=1e-5)


def test_copy_of_a_model_does_not_share_the_buffer() -> None:
    layer = Layer(3, 4)
    hcops.optimizer.flat_gradients([layer.weight])
    clone = copy.deepcopy(layer)
    x = torch.randn(5, 3)
    layer(x).square().sum().backward()
    before = layer.weight.grad.clone()
    clone(2 * x).square().sum().backward()
    assert torch.equal(layer.weight.grad, before)


@pytest.mark.parametrize("bucket_view", [False, True])
def test_distributed_data_parallel_gets_every_gradient(bucket_view: bool, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        layer = Layer(3, 4)
        hcops.optimizer.flat_gradients([layer.weight])
        weight = layer.weight.detach().clone()
        parallel = DistributedDataParallel(layer, gradient_as_bucket_view=bucket_view)
        for _ in range(3):
            inputs = [torch.randn(5, 3) for _ in range(3)]
            layer.zero_grad(set_to_none=True)
            with parallel.no_sync():
                for x in inputs[:2]:
                    (parallel(x) - layer.bias.detach()).square().sum().backward()
            (parallel(inputs[2]) - layer.bias.detach()).square().sum().backward()
            torch.testing.assert_close(layer.weight.grad, torch_gradient(weight, *inputs))
    finally:
        dist.destroy_process_group()
