"""Tests of a block as one autograd node: bitwise equality with separate operators, in three library calls."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dithc.core.logging import UserError
from dithc.engine import hcops, native
from dithc.engine.hcops import blocks, tuning
from dithc.engine.hcops.backend import raw
from dithc.engine.native.call_sequences import STEPS
from dithc.model.dit import Block
from dithc.model.presets import preset

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"no C kernels: {native.load_library().reason}")

WIDTH, HEADS, IMAGES, TOKENS = 32, 2, 3, 16


@pytest.fixture(autouse=True)
def _by_the_c_kernels() -> Iterator[None]:
    with hcops.use("c"):
        yield


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(blocks.fused, "accepts_block", lambda *_: False)


def _block() -> Block:
    torch.manual_seed(1)
    overrides = {"hidden_size": WIDTH, "num_heads": HEADS, "depth": 1, "input_size": 8}
    block = Block(preset("DiT-S/2", overrides))
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.2)
    return block


def _inputs() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(2)
    x, c = torch.randn(IMAGES, TOKENS, WIDTH, generator=draws), torch.randn(IMAGES, WIDTH, generator=draws)
    return x.requires_grad_(), c.requires_grad_()


def _results(block: Block) -> list[Tensor]:
    """Return the output and all gradients."""
    x, c = _inputs()
    out = block(x, c)
    out.float().square().sum().backward()
    return [out.detach(), x.grad, c.grad, *(parameter.grad for parameter in block.parameters())]


def _is_one_node(out: Tensor) -> bool:
    return type(out.grad_fn).__name__ == "dithc_blockBackward"


def test_block_makes_one_library_call_forward_and_two_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    handle = native.library()
    for name in (*STEPS, "hc_sequence"):
        function = getattr(handle, name)
        monkeypatch.setattr(handle, name, _recorded(calls, name, function))
    block, (x, c) = _block(), _inputs()
    out = block(x, c)
    assert calls == ["hc_sequence"]
    out.sum().backward()
    assert calls == ["hc_sequence"] * 3


def _recorded(calls: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        calls.append(name)
        return function(*arguments)

    return call


def _frozen(block: Block) -> None:
    block.attn.proj.weight.requires_grad_(False)


def _hooked(block: Block) -> None:
    block.mlp.fc1.register_forward_hook(lambda *_: None)


def _another_class(block: Block) -> None:
    class Mine(type(block.attn.qkv)):
        pass

    block.attn.qkv.__class__ = Mine


def _with_gaps(block: Block) -> None:
    block.mlp.fc2.weight = nn.Parameter(block.mlp.fc2.weight.detach().T.contiguous().T)


class _Through(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.part(*inputs, **named)


def _replaced(name: str) -> Callable[[Block], None]:
    def change(block: Block) -> None:
        setattr(block, name, _Through(getattr(block, name)))

    change.__name__ = f"replaced_{name}"
    return change


def _lengthened(block: Block) -> None:
    block.adaLN_modulation.append(nn.Dropout(0.0))


CHANGES = (
    *(_frozen, _hooked, _another_class, _with_gaps, _lengthened),
    *(_replaced(name) for name in ("attn", "mlp", "adaLN_modulation")),
)


@pytest.mark.parametrize("change", CHANGES)
def test_modified_block_runs_separate_operators_with_the_same_bits(change: Callable[[Block], None]) -> None:
    expected = _block()(*_inputs())
    block, (x, c) = _block(), _inputs()
    change(block)
    out = block(x, c)
    assert not _is_one_node(out)
    assert torch.equal(out, expected)


def test_block_with_unbiased_layer_is_not_fused() -> None:
    block, (x, c) = _block(), _inputs()
    block.attn.qkv.bias = None
    assert not _is_one_node(block(x, c))


def test_frozen_block_returns_equal_output_without_grad_fn() -> None:
    expected = _block()(*_inputs())
    block = _block().requires_grad_(False)
    out = block(*(value.detach() for value in _inputs()))
    assert out.grad_fn is None
    assert torch.equal(out, expected)


def test_submodule_hooks_run_with_equal_output() -> None:
    called: list[str] = []
    block, (x, c) = _block(), _inputs()
    for name, part in block.named_modules():
        if name:
            part.register_forward_hook(lambda *_, name=name: called.append(name))
    out = block(x, c)
    assert set(called) == {name for name, _ in block.named_modules() if name}
    plain = _block()(x, c)
    assert torch.equal(out, plain)


def test_global_module_hooks_run() -> None:
    called: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(type(module).__name__))
    try:
        _block()(*_inputs())
    finally:
        handle.remove()
    assert "Mlp" in called


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_alternative_backends_run_unfused_and_match_the_fused_block(backend: str) -> None:
    actual = _results(_block())
    with hcops.use(backend):
        assert not _is_one_node(_block()(*_inputs()))
        reference = _results(_block())
    for got, expected in zip(actual, reference, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=5e-6 * expected.abs().max().item())


def test_fused_block_with_torch_blocking_matches_separate_operators(one_by_one: Callable[[], None]) -> None:
    with tuning.use_blocking("torch"):
        fused = _results(_block())
        one_by_one()
        separate = _results(_block())
    for actual, expected in zip(fused, separate, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def _flat(block: Block) -> list[nn.Parameter]:
    weights = [layer.weight for layer in block.modules() if isinstance(layer, nn.Linear)]
    hcops.optimizer.flat_gradients(weights)
    return weights


def _expected(*scales: float) -> list[Tensor]:
    """Return the gradients of all parameters over several micro-batches."""
    block = _block()
    for scale in scales:
        x, c = _inputs()
        (block(x, c).square().sum() * scale).backward()
    return [parameter.grad for parameter in block.parameters()]


def _two_micro_batches_land_in_the_flat_buffer(block: Block, weights: list[nn.Parameter]) -> None:
    for scale in (1.0, 0.5):
        x, c = _inputs()
        (block(x, c).square().sum() * scale).backward()
    assert all(weight.grad.data_ptr() == weight.flat_grad.data_ptr() for weight in weights)
    for parameter, expected in zip(block.parameters(), _expected(1.0, 0.5), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("failing", ["gate_residual_backward", "attention_backward", "silu_backward", "hc_sequence"])
def test_failed_backward_leaves_gradients_unset_and_next_pass_correct(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = _block()
    weights = _flat(block)
    x, c = _inputs()
    out = block(x, c).square().sum()

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patched:
        if failing == "hc_sequence":
            patched.setattr(native.library(), failing, fail)
        else:
            original = raw
            patched.setattr(hcops.autograd.gradients, "raw", lambda name: fail if name == failing else original(name))
        with pytest.raises(MemoryError, match="none left"):
            out.backward()
    assert all(weight.grad is None for weight in weights)
    _two_micro_batches_land_in_the_flat_buffer(block, weights)


def test_block_used_twice_in_a_pass_accumulates_both_gradients() -> None:
    block = _block()
    _flat(block)
    x, c = _inputs()
    block(block(x, c), c).square().sum().backward()
    plain, (x, c) = _block(), _inputs()
    plain(plain(x, c), c).square().sum().backward()
    for parameter, expected in zip(block.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_block_has_the_same_gradients(reentrant: bool) -> None:
    expected = _results(_block())
    block, (x, c) = _block(), _inputs()
    out = torch.utils.checkpoint.checkpoint(block, x, c, use_reentrant=reentrant)
    out.square().sum().backward()
    for got, gradient in zip(
        [out.detach(), x.grad, c.grad, *(p.grad for p in block.parameters())], expected, strict=True
    ):
        assert torch.equal(got, gradient)


def test_weight_modified_before_backward_raises_runtime_error() -> None:
    block, (x, c) = _block(), _inputs()
    out = block(x, c).sum()
    with torch.no_grad():
        block.mlp.fc1.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("argument", ["x", "c"])
def test_wrong_input_shape_is_rejected_by_argument_name(argument: str) -> None:
    x, c = _inputs()
    given = (x[:, :, :-1], c) if argument == "x" else (x, c[:, :-1])
    with pytest.raises(UserError, match="argument"):
        _block()(*given)
