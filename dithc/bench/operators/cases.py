"""Cases of `bench ops`: each operator with the shapes and types of a training step, by several implementations.

All implementations allocate their outputs. Inputs of hcops are in the huge-page pool, inputs of torch in its own
memory. torch.autograd.grad on a retained output times only the backward pass. In bf16, hcops rounds fp32 weights inside
the product, as under autocast; torch receives bf16 matrices, without the cast that training needs.

Legend: N batch, T tokens, D width, H heads, K head width, E width of a hidden layer; M rows of a matrix, F output
features.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dithc.bench.environment import require_among
from dithc.bench.gemm_libraries import LIBRARIES, make_linear
from dithc.bench.operators import settings
from dithc.bench.operators.settings import TYPES, OperatorCase, Run, autocast_context, random
from dithc.bench.operators.shapes import PASSES, LinearShape, Pass, module_layers
from dithc.bench.rooflines import Precision
from dithc.engine import hcops
from dithc.engine.hcops import reference
from dithc.model import PRESETS

# Batches of the published target speeds. Other models use OTHER_BATCH.
BATCHES = {"DiT-XL/2": 4, "DiT-S/2": 16}
OTHER_BATCH = 4
# Width, tokens and heads of the memory-bound cases, and hidden width of a SwiGLU, from DiT-XL/2 and ModernDiT-XL/2.
WIDTH, TOKENS, HEADS, HIDDEN = 1152, 256, 16, 3072
# (heads, head width, images) of DiT-S/2 and DiT-XL/2.
ATTENTION_SHAPES = ((6, 64, 16), (16, 72, 4))
PARAMETER_SHAPE = (4608, 1152)
FP32_BYTES = 4
ADAMW: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
EMA_DECAY = 0.9999
LARGEST_NORM = 1.0


def cases(
    requested: Sequence[str],
    *,
    models: Sequence[str],
    dtypes: Sequence[Precision],
    size_bytes: int,
    libraries: Sequence[str] = (),
) -> list[Callable[[], OperatorCase]]:
    """Return functions that build the cases one by one, so that each case is freed before the next."""
    require_among("bench ops --ops", requested, OPS)
    require_among("bench ops --models", models, PRESETS)
    if libraries:
        require_among("bench ops --libraries", libraries, LIBRARIES)
    builders: list[Callable[[], OperatorCase]] = []
    for op in requested:
        for dtype in dtypes:
            if op == "gemm":
                builders += [build for model in models for build in gemm(model, dtype, libraries)]
            elif op == "attention":
                builders += [partial(_attention, dtype, *shape) for shape in ATTENTION_SHAPES]
            elif op != "adamw" or dtype == "fp32":  # optimizer arrays are always fp32
                builders.append(partial(memory_bound, op, dtype, size_bytes))
    return builders


def gemm(model: str, dtype: Precision, libraries: Sequence[str] = ()) -> list[Callable[[], OperatorCase]]:
    """Return the three products of each module in table 4, by dithc, PyTorch and the available libraries."""
    layers = module_layers(PRESETS[model], batch=BATCHES.get(model, OTHER_BATCH))
    available = [name for name in libraries if LIBRARIES[name].skip_reason(dtype) is None]
    return [partial(_product, model, layer, kind, dtype, available) for layer in layers for kind in PASSES]


def _product(model: str, layer: LinearShape, kind: Pass, dtype: Precision, libraries: Sequence[str]) -> OperatorCase:
    linears = {"eager": F.linear, **{name: make_linear(LIBRARIES[name]) for name in libraries}}
    with autocast_context(dtype):
        runs = {"hcops": linear_run(layer, kind, dtype)}
        runs |= {name: linear_run(layer, kind, dtype, linear) for name, linear in linears.items()}
    m, n, k = layer.product(kind)
    return OperatorCase(
        op="gemm",
        group=f"gemm {model}",
        name=f"{layer.name} {kind}",
        dtype=dtype,
        shape={"m": m, "n": n, "k": k},
        limit="multiply_add",
        work=layer.flop,
        counted="2 m n k",
        runs={name: {kind: run} for name, run in runs.items()},
    )


def linear_run(layer: LinearShape, kind: Pass, dtype: Precision, linear: Callable[..., Tensor] = hcops.linear) -> Run:
    """Return a function for one product of a linear layer, with its bias or bias gradient, as in training.

    hcops gets fp32 weights, and inputs in the pool; other functions get weights of `dtype`.
    """
    is_hcops = linear is hcops.linear
    weight_dtype = torch.float32 if is_hcops else TYPES[dtype]
    place = settings.as_output if is_hcops else lambda tensor: tensor
    x = place(random(layer.rows, layer.in_features, dtype=TYPES[dtype]))  # (M, K)
    weight = random(layer.out_features, layer.in_features, dtype=weight_dtype, seed=1)  # (F, K)
    bias = random(layer.out_features, dtype=weight_dtype, seed=2)  # (F)
    operands = {"forward": [x, weight, bias], "grad_input": [x], "grad_weight": [weight, bias]}[kind]
    for tensor in operands:
        tensor.requires_grad_()
    if kind == "forward":
        return lambda: linear(x, weight, bias)
    dout = random(layer.rows, layer.out_features, dtype=TYPES[dtype], seed=3)  # (M, F)
    return settings.backward_of(linear(x, weight, bias), operands, place(dout))


def _attention(dtype: Precision, heads: int, width: int, images: int) -> OperatorCase:
    qkv = random(images, TOKENS, 3 * heads * width, dtype=TYPES[dtype])  # (N, T, 3D)
    dout = random(images, TOKENS, heads * width, seed=1)  # (N, T, D)
    with autocast_context(dtype):
        fused = settings.hcops_passes(partial(hcops.attention, num_heads=heads), [qkv], dout)
        eager = settings.passes(partial(reference.attention, num_heads=heads), [qkv], dout)
    return OperatorCase(
        op="attention",
        group="attention",
        name=f"K={width}",
        dtype=dtype,
        shape={"N": images, "T": TOKENS, "H": heads, "K": width},
        limit="multiply_add",
        work=6 * 2 * images * heads * TOKENS * TOKENS * width,
        counted="two products forward, four backward, without recomputation",
        runs={"hcops": fused, "eager": eager},
    )


class _Operator(NamedTuple):
    """Memory-bound operator on arrays of a number of images.

    Attributes:
        inputs: shape per image and type of each input.
        output: shape per image.
        num_bytes: bytes that an ideal implementation moves per image; `counted` describes them.
        sizes: sizes other than N and T.
    """

    hcops: Callable[..., Tensor]
    eager: Callable[..., Tensor]
    inputs: Sequence[tuple[tuple[int, ...], torch.dtype]]
    output: tuple[int, ...]
    num_bytes: int
    counted: str
    sizes: Mapping[str, int]


def memory_bound(op: str, dtype: Precision, size_bytes: int) -> OperatorCase:
    """Return a case whose first input has about `size_bytes` in fp32."""
    with autocast_context(dtype):
        return adamw(dtype, size_bytes) if op == "adamw" else _built(op, _operator(op, dtype), dtype, size_bytes)


def _built(op: str, operator: _Operator, dtype: Precision, size_bytes: int) -> OperatorCase:
    images = max(1, size_bytes // (FP32_BYTES * math.prod(operator.inputs[0][0])))
    inputs = [random(images, *shape, dtype=kind, seed=seed) for seed, (shape, kind) in enumerate(operator.inputs)]
    dout = random(images, *operator.output, seed=len(inputs))
    return OperatorCase(
        op=op,
        group="memory-bound",
        name=op,
        dtype=dtype,
        shape={"N": images, "T": TOKENS, **operator.sizes},
        limit="copy",
        work=images * operator.num_bytes,
        counted=operator.counted,
        runs={
            "hcops": settings.hcops_passes(operator.hcops, inputs, dout),
            "eager": settings.passes(operator.eager, inputs, dout),
        },
    )


def _operator(op: str, dtype: Precision) -> _Operator:
    """Return an operator. The residual stream of the norms and gates is fp32, as in the model."""
    vector, kind, itemsize = hcops.vector, TYPES[dtype], TYPES[dtype].itemsize
    wide, count, sizes = (TOKENS, WIDTH), TOKENS * WIDTH, {"D": WIDTH}
    if op in ("gelu", "silu"):
        own_op, eager = (vector.gelu, partial(F.gelu, approximate="tanh")) if op == "gelu" else (vector.silu, F.silu)
        traffic = "forward reads x, writes y; backward reads dy and x, writes dx"
        return _Operator(own_op, eager, [(wide, kind)], wide, 5 * count * itemsize, traffic, sizes)
    if op in ("adaln", "adarms"):
        reference_op = reference.adaln if op == "adaln" else reference.adarms
        traffic = "forward reads x, writes y; backward reads dy and x, writes dx; excluding (N, D) and (N, T) arrays"
        return _Operator(
            partial(vector.adaln, rms=op == "adarms"),
            lambda x, shift, scale: reference_op(x, shift, scale, 1e-6).to(kind),  # of the next linear layer
            [(wide, torch.float32), ((WIDTH,), kind), ((WIDTH,), kind)],
            *(wide, count * (3 * FP32_BYTES + 2 * itemsize), traffic, sizes),
        )
    if op == "gate_residual":
        traffic = "forward reads x and y, writes out; backward reads dout and y, writes dy (dx is dout)"
        inputs = [(wide, torch.float32), ((WIDTH,), kind), (wide, kind)]
        num_bytes = count * (3 * FP32_BYTES + 3 * itemsize)
        return _Operator(vector.gate_residual, reference.gate_residual, inputs, wide, num_bytes, traffic, sizes)
    if op == "rotate_heads":  # without the norms of q and k
        angles = random(TOKENS, WIDTH // HEADS // 2, seed=2)  # (T, K / 2)
        cos, sin, qkv = angles.cos(), angles.sin(), (TOKENS, 3 * WIDTH)
        traffic = "forward reads qkv, writes the rotated qkv; backward reads dout, writes dqkv"
        return _Operator(
            lambda x: vector.rotate_heads(x, HEADS, cos=cos, sin=sin, query_weight=None, key_weight=None),
            lambda x: reference.rotate_heads(x, HEADS, cos, sin, None, None, 1e-6),
            *([(qkv, kind)], qkv, 4 * 3 * count * itemsize, f"{traffic}; excluding (T, K / 2) tables"),
            {"D": WIDTH, "H": HEADS, "K": WIDTH // HEADS},
        )
    traffic = "forward reads gates and values, writes y; backward reads dy, gates and values, writes both gradients"
    hidden, num_bytes = (TOKENS, HIDDEN), 8 * TOKENS * HIDDEN * itemsize
    inputs = [((TOKENS, 2 * HIDDEN), kind)]
    return _Operator(vector.swiglu, reference.swiglu, inputs, hidden, num_bytes, traffic, {"E": HIDDEN})


def adamw(dtype: Precision, size_bytes: int) -> OperatorCase:
    """Return the case of norm, clipping, update and moving average of `size_bytes` of weights."""
    count = max(1, size_bytes // (FP32_BYTES * PARAMETER_SHAPE[0] * PARAMETER_SHAPE[1]))
    arrays = [[random(*PARAMETER_SHAPE, seed=list_ * count + i) for i in range(count)] for list_ in range(2)]
    arrays += [[torch.zeros(PARAMETER_SHAPE) for _ in range(count)] for _ in range(2)]  # moments
    arrays.append([tensor.clone() for tensor in arrays[0]])
    elements = count * PARAMETER_SHAPE[0] * PARAMETER_SHAPE[1]
    return OperatorCase(
        op="adamw",
        group="memory-bound",
        name="adamw",
        dtype=dtype,
        shape={"tensors": count, "elements": elements},
        limit="copy",
        work=10 * elements * FP32_BYTES,
        counted="the norm reads gradients; the update reads weight, gradient, two moments and average, writes these "
        "except the gradient",
        runs={
            "hcops": {"update": _hcops_update(*arrays)},
            "eager": {"update": _torch_update(arrays[0], arrays[1], arrays[4], fused=True)},
            "foreach": {"update": _torch_update(arrays[0], arrays[1], arrays[4], foreach=True)},
        },
    )


def _hcops_update(
    weights: list[Tensor], gradients: list[Tensor], first: list[Tensor], second: list[Tensor], averages: list[Tensor]
) -> Run:
    def run() -> None:
        scale = min(1.0, LARGEST_NORM / (hcops.optimizer.sum_of_squares(gradients) ** 0.5 + 1e-6))
        hcops.optimizer.adamw(
            *(weights, gradients, first, second),
            averages=averages,
            step=1,
            gradient_scale=scale,
            ema_decay=EMA_DECAY,
            **ADAMW,
        )

    return run


def _torch_update(weights: list[Tensor], gradients: list[Tensor], averages: list[Tensor], **options: Any) -> Run:
    parameters = [torch.nn.Parameter(weight) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer = torch.optim.AdamW(parameters, **ADAMW, **options)

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, LARGEST_NORM)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(averages, [parameter.detach() for parameter in parameters], 1 - EMA_DECAY)

    return run


MEMORY_BOUND = ("gelu", "adaln", "adarms", "gate_residual", "rotate_heads", "silu", "swiglu", "adamw")
OPS = ("gemm", "attention", *MEMORY_BOUND)
