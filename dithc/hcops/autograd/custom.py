"""The fast operators as torch sees them: `torch.ops.dithc.*` with fake kernels and gradients, and a shorter way for eager code.

torch.compile, torch.export, FakeTensor and every other mode of dispatch see operators of `torch.library`, whose CPU kernels are
the raw kernels of the active back end. Plain eager code calls the same raw kernels through a torch.autograd.Function:
13 microseconds for forward and backward where the way through the dispatcher takes 29, twice for each of the hundred
operators of a training step.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dithc.hcops.active import backend_of, raw, say_default
from dithc.hcops.autograd import counts, fakes, gradients
from dithc.hcops.checks import served_type

# Lives as long as the process; torch forgets the operators of a library that is collected.
LIBRARY = torch.library.Library("dithc", "DEF")  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Operator:
    """A differentiable operator; calling it gives its first output.

    Attributes:
        schema: arguments and results, as torch writes them.
        fake: shapes and types of the results, from the same arguments.
        keep: (ctx, inputs, outputs): saves what the backward pass needs.
        backward: (ctx, gradient of the first output): the gradients of all inputs.
        num_outputs: results of the raw kernel; only the first has a gradient.
        may_drop: whether the raw kernel of C takes keep=False: then it does not make what only the gradient needs.
    """

    name: str
    schema: str
    fake: Callable[..., Any]
    keep: Callable[[Any, tuple[Any, ...], tuple[Tensor, ...]], None]
    backward: Callable[[Any, Tensor], gradients.Gradients]
    num_outputs: int = 1
    may_drop: bool = False
    _direct: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        _define(self.name, f"{self.name}_forward", self.schema, self.fake)
        torch.library.register_autograd(
            f"dithc::{self.name}", self._library_backward, setup_context=self._library_keep, lib=LIBRARY
        )
        self._direct.append(_function(self))

    def __call__(self, *inputs: Any) -> Tensor:
        if traced(inputs[0]):
            outputs = getattr(torch.ops.dithc, self.name)(*inputs)
            first: Tensor = outputs if self.num_outputs == 1 else outputs[0]
            return first
        if not _recorded(inputs):
            say_default()
            settings = {"keep": False} if self.may_drop and backend_of(self.name) == "c" else {}
            found = raw(f"{self.name}_forward")(*inputs, **settings)
            alone: Tensor = found[0] if isinstance(found, tuple) else found
            return alone
        only: Tensor = self._direct[0].apply(*inputs)
        return only

    def _library_keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.direct = False
        ctx.mark_non_differentiable(*outputs[1:])
        self.keep(ctx, inputs, outputs)

    def _library_backward(self, ctx: Any, gradient: Tensor, *_: Tensor | None) -> Any:
        found = self.backward(ctx, gradient)
        return found if len(found) > 1 else found[0]


def traced(tensor: Tensor) -> bool:
    """Whether torch records operators now, or the tensor has no memory: then operators of torch are needed."""
    is_recorded = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return bool(is_recorded or torch._C._len_torch_dispatch_stack() or tensor.is_meta)


def _recorded(inputs: tuple[Any, ...]) -> bool:
    """Whether autograd will ask for a gradient of this call."""
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in inputs)


def _function(operator: Operator) -> type[torch.autograd.Function]:
    forward_name = f"{operator.name}_forward"
    keep = operator.keep

    def forward(ctx: Any, *inputs: Any) -> Tensor:
        say_default()
        found = raw(forward_name)(*inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        ctx.direct = True
        keep(ctx, inputs, outputs)
        first: Tensor = outputs[0]
        return first

    # The name is what a profiler shows of the backward pass.
    functions = {"forward": staticmethod(forward), "backward": staticmethod(operator.backward)}
    return type(f"dithc_{operator.name}", (torch.autograd.Function,), functions)


def _define(name: str, raw_name: str, schema: str, fake: Callable[..., Any], **fixed: Any) -> None:
    """Makes a raw kernel an operator of torch; what the kernel left out (None) becomes an empty tensor.

    `fixed` are arguments of the kernel that the operator does not have.
    """

    def kernel(*inputs: Any, **settings: Any) -> Any:
        say_default()
        for value in (*inputs, *settings.values()):
            if isinstance(value, torch.dtype):
                served_type(name, value)
        dense = (_contiguous(value) for value in inputs)
        found = raw(raw_name)(*dense, **{key: _contiguous(value) for key, value in settings.items()}, **fixed)
        if not isinstance(found, tuple):
            return found
        return tuple(inputs[0].new_empty(0) if value is None else value for value in found)

    LIBRARY.define(f"{name}{schema}")  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"dithc::{name}", fake, lib=LIBRARY)


def _contiguous(value: Any) -> Any:
    return value.contiguous() if isinstance(value, Tensor) else value


LINEAR = Operator(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias, ScalarType dtype) -> Tensor",
    *(fakes.linear, gradients.keep_linear, gradients.linear),
)
LINEAR_GELU = Operator(
    "linear_gelu",
    "(Tensor x, Tensor weight, Tensor? bias, ScalarType dtype) -> (Tensor, Tensor)",
    *(fakes.linear_gelu, gradients.keep_linear_gelu, gradients.linear_gelu, 2, True),
)
LINEAR_GATE_RESIDUAL = Operator(
    "linear_gate_residual",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor gate, Tensor residual, ScalarType dtype) -> (Tensor, Tensor)",
    *(fakes.linear_gate_residual, gradients.keep_linear_gate_residual, gradients.linear_gate_residual, 2, True),
)
MLP = Operator(
    "mlp",
    "(Tensor x, Tensor weight1, Tensor? bias1, Tensor weight2, Tensor? bias2, Tensor gate, Tensor residual, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    *(fakes.mlp, gradients.keep_mlp, gradients.mlp, 4, True),
)
ADALN = Operator(
    "adaln",
    "(Tensor x, Tensor shift, Tensor scale, float eps, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    *(fakes.adaln, gradients.keep_adaln, gradients.adaln, 3),
)
ADARMS = Operator(
    "adarms",
    "(Tensor x, Tensor shift, Tensor scale, float eps, ScalarType dtype) -> (Tensor, Tensor)",
    *(fakes.adarms, gradients.keep_adarms, gradients.adarms, 2),
)
GATE_RESIDUAL = Operator(
    "gate_residual",
    "(Tensor x, Tensor gate, Tensor y) -> Tensor",
    *(fakes.gate_residual, gradients.keep_gate_residual, gradients.gate_residual),
)
ATTENTION = Operator(
    "attention",
    "(Tensor qkv, SymInt num_heads) -> (Tensor, Tensor)",
    *(fakes.attention, gradients.keep_attention, gradients.attention, 2),
)
ROTATE_HEADS = Operator(
    "rotate_heads",
    "(Tensor qkv, SymInt num_heads, Tensor? cos, Tensor? sin, Tensor? query_weight, Tensor? key_weight, float eps) "
    "-> Tensor",
    *(fakes.rotate_heads, gradients.keep_rotate_heads, gradients.rotate_heads),
)
SWIGLU = Operator("swiglu", "(Tensor x) -> Tensor", fakes.swiglu, gradients.keep_input, gradients.swiglu)
SILU = Operator("silu", "(Tensor x) -> Tensor", fakes.same, gradients.keep_input, gradients.silu)
GELU = Operator("gelu", "(Tensor x) -> Tensor", fakes.same, gradients.keep_input, gradients.gelu)
SOFTMAX = Operator("softmax", "(Tensor x) -> Tensor", fakes.same, gradients.keep_output, gradients.softmax)
EXP = Operator("exp", "(Tensor x) -> Tensor", fakes.same, gradients.keep_output, gradients.exp)
TANH = Operator("tanh", "(Tensor x) -> Tensor", fakes.same, gradients.keep_output, gradients.tanh)
MSE = Operator("mse", "(Tensor x, Tensor y) -> Tensor", fakes.mse, gradients.keep_mse, gradients.mse)
SCALE_ADD = Operator(
    "scale_add",
    "(Tensor x, Tensor? y, float alpha, float beta) -> Tensor",
    *(fakes.scale_add, gradients.keep_scale_add, gradients.scale_add),
)
PATCHIFY = Operator(
    "patchify",
    "(Tensor image, SymInt p, int order) -> Tensor",
    *(fakes.patchify, gradients.keep_patchify, gradients.patchify),
)
UNPATCHIFY = Operator(
    "unpatchify",
    "(Tensor patches, SymInt rows, SymInt p, int order) -> Tensor",
    *(fakes.unpatchify, gradients.keep_unpatchify, gradients.unpatchify),
)


class AdalnAndStream(torch.autograd.Function):
    """adaLN that also hands its input on, so that one function gets both gradients of the residual stream."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        return _norm_and_stream(ctx, "adaln_forward", gradients.keep_adaln, (x, *others))

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dstream: Tensor | None) -> gradients.Gradients:
        return gradients.adaln_and_stream(ctx, dy, dstream)


class AdarmsAndStream(torch.autograd.Function):
    """The same with RMSNorm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        return _norm_and_stream(ctx, "adarms_forward", gradients.keep_adarms, (x, *others))

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dstream: Tensor | None) -> gradients.Gradients:
        return gradients.adarms_and_stream(ctx, dy, dstream)


def _norm_and_stream(ctx: Any, name: str, keep: Callable[..., None], inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    say_default()
    outputs = raw(name)(*inputs)
    ctx.direct = True
    ctx.set_materialize_grads(False)
    keep(ctx, inputs, outputs)
    return outputs[0], inputs[0]


_PAIR = "(Tensor dy, Tensor saved) -> Tensor"
_define(
    *("linear_backward", "linear_backward"),
    "(Tensor dy, Tensor x, Tensor weight, bool has_bias, bool[3] needs, *, Tensor? gelu_at=None) "
    "-> (Tensor, Tensor, Tensor)",
    fakes.linear_backward,
    into=None,
)
for _name, _schema, _fake in (
    (
        "adaln_backward",
        "(Tensor dy, Tensor x, Tensor scale, Tensor mean, Tensor rstd, Tensor? dstream=None) -> (Tensor, Tensor, Tensor)",
        fakes.adaln_backward,
    ),
    (
        "adarms_backward",
        "(Tensor dy, Tensor x, Tensor scale, Tensor rstd, Tensor? dstream=None) -> (Tensor, Tensor, Tensor)",
        fakes.adarms_backward,
    ),
    (
        "rotate_heads_backward",
        "(Tensor dout, Tensor? qkv, SymInt num_heads, Tensor? cos, Tensor? sin, Tensor? query_weight, Tensor? key_weight, "
        "float eps) -> (Tensor, Tensor, Tensor)",
        fakes.rotate_heads_backward,
    ),
    (
        "gate_residual_backward",
        "(Tensor dout, Tensor gate, Tensor y, *, ScalarType dtype) -> (Tensor, Tensor)",
        fakes.gate_residual_backward,
    ),
    (
        "attention_backward",
        "(Tensor dout, Tensor qkv, Tensor out, Tensor lse, SymInt num_heads) -> Tensor",
        lambda dout, qkv, out, lse, num_heads: torch.empty_like(qkv),
    ),
    ("swiglu_backward", _PAIR, fakes.like_second),
    ("silu_backward", _PAIR, fakes.like_second),
    ("gelu_backward", _PAIR, fakes.like_second),
    ("exp_backward", _PAIR, fakes.like_second),
    ("tanh_backward", _PAIR, fakes.like_second),
    ("softmax_backward", _PAIR, fakes.like_second),
    ("mse_backward", "(Tensor dout, Tensor x, Tensor y) -> Tensor", lambda dout, x, y: torch.empty_like(x)),
):
    _define(_name, _name, _schema, _fake)
counts.register()
