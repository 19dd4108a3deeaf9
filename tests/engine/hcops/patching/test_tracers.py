"""Tracers and transformations of torch receive torch's own operators from a patched model, without measurements."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dithc.engine import hcops, native
from dithc.engine.hcops.patching import autotune, dispatch_mode
from tests.engine.hcops.patching.test_custom_rmsnorm import ARMSNorm

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
WIDTH = 16


class Block(nn.Module):
    """Module with every operator that can be served."""

    def __init__(self, attends=True):
        super().__init__()
        self.attends = attends
        self.norm, self.own_norm, self.inner_norm = nn.LayerNorm(WIDTH), ARMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v) if self.attends else q + k + v
        x = x + mixed.transpose(1, 2).flatten(2)
        return x + F.silu(F.gelu(self.out(self.own_norm(x))) + F.gelu(self.inner_norm(x), approximate="tanh"))


def fake(model, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = model(mode.from_tensor(x))
    assert (out.shape, out.stride()) == (x.shape, x.stride())
    return lambda data: model(data)


def gradient(model, x):
    return lambda data: torch.func.grad(lambda leaf: model(leaf).square().sum())(data)


TRACERS = {
    "jit.trace": torch.jit.trace,
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
    "strict export": lambda model, x: torch.export.export(model, (x,), strict=True).module(),
    "make_fx": lambda model, x: make_fx(model)(x),
    "symbolic_trace": lambda model, x: torch.fx.symbolic_trace(model),
    "compile": lambda model, x: torch.compile(model, backend="eager"),
    "compile with autograd": lambda model, x: torch.compile(model, backend="aot_eager"),
    "FakeTensorMode": fake,
    "grad": gradient,
    "vmap": lambda model, x: lambda data: torch.vmap(model)(data[:, None])[:, 0],
    "jvp": lambda model, x: lambda data: torch.func.jvp(model, (data,), (data,))[1],
    "hooks disabled": lambda model, x: torch.autograd.graph.disable_saved_tensors_hooks("no hooks")(model),
}


class Tracing(nn.Module):
    """Module that traces another module, which is not its child, within its forward pass."""

    def __init__(self, trace, block):
        super().__init__()
        self.trace, self.hidden = trace, [block]

    def forward(self, x):
        return self.trace(self.hidden[0], x)(x)


def measure_in_eager_code_only(*_):
    assert torch._C._get_tracing_state() is None
    assert not torch.compiler.is_compiling()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch._C._are_functorch_transforms_active()
    return autotune.AutotuneResult(0.5, is_faster=True)


SLOW = {"export", "strict export", "compile with autograd"}


@pytest.mark.parametrize(
    "tracer", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in TRACERS]
)
def test_tracers_match_the_unpatched_model_without_measurements(tracer, monkeypatch):
    torch.manual_seed(0)
    plain, trace = Block(attends=tracer != "jvp").requires_grad_(tracer == "grad"), TRACERS[tracer]
    monkeypatch.setattr(dispatch_mode, "MEASURED", autotune.AutotuneCache())
    monkeypatch.setattr(dispatch_mode, "measure", measure_in_eager_code_only)
    x, data = torch.randn(2, 3, WIDTH), torch.randn(2, 3, WIDTH)
    expected = trace(plain, x)(data)
    patched = copy.deepcopy(plain)
    hcops.patch(patched, threads="own")
    torch.testing.assert_close(trace(patched, x)(data), expected, rtol=1e-4, atol=1e-5)
    around = Tracing(trace, plain)
    hcops.patch(around, threads="own")
    if tracer != "strict export":  # torch rejects it within any mode
        torch.testing.assert_close(around(data), expected, rtol=1e-4, atol=1e-5)


def test_trace_contains_no_dithc_operators():
    block, x = Block(), torch.randn(2, 3, WIDTH)
    hcops.patch(block, always=True, threads="own")
    for graph in (torch.jit.trace(block, x, check_trace=False).inlined_graph, make_fx(block)(x).graph):
        assert "dithc::" not in str(graph)
        assert "dithc_" not in str(graph)


@pytest.mark.slow
@pytest.mark.parametrize(
    "context", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_measurements_in_contexts_leave_results_and_later_gradients_intact(context, monkeypatch):
    monkeypatch.setenv("DITHC_TUNING_FOLDER", "off")
    monkeypatch.setattr(dispatch_mode, "MEASURED", autotune.AutotuneCache())
    block, x = Block(), torch.randn(2, 3, WIDTH)
    with context():
        expected = block(x)
    hcops.patch(block, threads="own")
    with context():
        torch.testing.assert_close(block(x), expected, rtol=2e-2, atol=2e-2)
    block(x).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in block.parameters())


@pytest.mark.parametrize("part", ["model", "container", "leaf"])
def test_scripting_a_patched_module_raises(part):
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.SiLU()), ARMSNorm(8))
    chosen = {"model": model, "container": model[0], "leaf": model[1]}[part]
    hcops.patch(model)
    with pytest.raises(AttributeError):
        torch.jit.script(chosen)
