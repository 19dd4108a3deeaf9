"""Memory layout of served calls: outputs and gradients have the strides of torch's own operators for inputs of any
layout.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dithc.engine import hcops, native

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
SIZES = st.sampled_from([1, 2, 3, 4, 7, 16])
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2}
MODES = (torch.enable_grad, torch.enable_grad, torch.enable_grad, torch.no_grad, torch.inference_mode)


class FunctionModule(nn.Module):
    """Module with one torch function as its forward pass."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


@st.composite
def laid_out(draw, shape, dtype=torch.float32):
    """Draw random tensors with any order of dimensions in memory, gaps, offsets and expanded dimensions."""
    order = draw(st.one_of(st.just(tuple(range(len(shape)))), st.permutations(range(len(shape)))))
    gaps = [draw(st.sampled_from([0, 0, 0, 0, 1, 3])) for _ in shape]
    stored = [(draw(st.integers(0, 9)) and size) or 1 for size in shape]
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    tensor = torch.randn([stored[d] + gaps[d] for d in order], generator=numbers).to(dtype)
    tensor = tensor.permute([order.index(d) for d in range(len(shape))])
    for d, size in enumerate(stored):
        tensor = tensor.narrow(d, draw(st.integers(0, gaps[d])), size)
    return tensor.expand(shape)


@st.composite
def linear(draw):
    leading, width, features = draw(st.lists(SIZES, max_size=3)), draw(SIZES), draw(SIZES)
    return [(*leading, width), (features, width), (features,)][: draw(st.sampled_from([2, 3]))], F.linear


@st.composite
def norm(draw):
    leading, width, weights = draw(st.lists(SIZES, max_size=3)), draw(SIZES), draw(st.integers(0, 2))
    function = F.layer_norm if weights == 2 or draw(st.booleans()) else F.rms_norm
    shapes = [(*leading, width), *[(width,)] * weights]
    return shapes, lambda x, *weights: function(x, (width,), *weights, eps=0.5)


@st.composite
def activation(draw):
    function = draw(st.sampled_from([F.gelu, partial(F.gelu, approximate="tanh"), F.silu]))
    return [tuple(draw(st.lists(SIZES, max_size=4)))], function


@st.composite
def attention(draw):
    images, groups, tokens, keys, width = (draw(SIZES) for _ in range(5))
    times, heads = draw(st.sampled_from([1, 1, 2, 3])), (images, groups, keys, width)
    settings = {"is_causal": draw(st.booleans()), "enable_gqa": times > 1}
    shapes = [(images, groups * times, tokens, width), heads, heads]
    return shapes, partial(F.scaled_dot_product_attention, **settings)


OPERATORS = {"linear": linear, "norm": norm, "activation": activation, "attention": attention}


def results(model, tensors, needs, gradient, *, autocast=False, mode=torch.enable_grad):
    """Return output and gradients; None replaces missing gradients."""
    leaves = [t.detach().requires_grad_(need and t.is_floating_point()) for t, need in zip(tensors, needs, strict=True)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), mode():
        out = model(*leaves)
    if not out.requires_grad:
        return [out]
    inputs = [leaf for leaf in leaves if leaf.requires_grad]
    return [out, *torch.autograd.grad(out, inputs, gradient.to(out.dtype), allow_unused=True)]


def layout(tensor):
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_inference()


@pytest.mark.parametrize("name", OPERATORS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_results_have_the_layout_of_torch(name, data):
    shapes, function = data.draw(OPERATORS[name]())
    dtype, autocast = data.draw(st.sampled_from([*TOLERANCE])), data.draw(st.sampled_from([False, False, True]))
    tensors = [data.draw(laid_out(shape, dtype)) for shape in shapes]
    if name == "norm" and data.draw(st.booleans()):
        tensors[1:] = [tensor.float() for tensor in tensors[1:]]
    needs, mode = [data.draw(st.integers(0, 4)) > 0 for _ in tensors], data.draw(st.sampled_from(MODES))
    model = FunctionModule(function)
    gradient = data.draw(laid_out(tuple(function(*tensors).shape)))
    exact_results = results(model, [t.double() for t in tensors], needs, gradient, mode=mode)
    expected = results(model, tensors, needs, gradient, autocast=autocast, mode=mode)
    patched = hcops.patch(model, always=True, threads="own")
    found = results(model, tensors, needs, gradient, autocast=autocast, mode=mode)
    assert not found[0]._is_view() or expected[0]._is_view(), str(patched)
    assert found[0].untyped_storage().nbytes() == expected[0].untyped_storage().nbytes()
    tolerance = TOLERANCE[torch.bfloat16 if autocast else dtype]
    for served, plain, exact in zip(found, expected, exact_results, strict=True):
        assert layout(served) == layout(plain), str(patched)
        off, torch_off = ((t.double() - exact).norm() for t in (served, plain))
        assert off <= 2 * torch_off + tolerance * (1 + exact.norm())


def test_in_place_changes_of_served_results_are_allowed():
    heads, x, ones = torch.randn(2, 3, 4, 8), torch.randn(2, 5, 8), torch.ones(8)
    query = heads.clone().requires_grad_()
    for function in (
        lambda: F.scaled_dot_product_attention(heads, heads, heads),
        lambda: F.scaled_dot_product_attention(query, heads, heads),
        lambda: F.layer_norm(x, (8,), ones, ones),
        lambda: F.linear(x, torch.eye(8, requires_grad=True)),
        lambda: F.gelu(x.clone().requires_grad_()),
    ):
        model = FunctionModule(lambda function=function: function().mul_(2))
        expected = model()
        hcops.patch(model, always=True, threads="own")
        torch.testing.assert_close(model(), expected, rtol=1e-4, atol=1e-4)
