"""Cases of `bench ops`: each operator with the shapes and types of a training step, by several implementations.

All implementations allocate their outputs. Inputs of hcops are in the huge-page pool, inputs of torch in its own
memory. torch.autograd.grad on a retained output times only the backward pass. In bf16, hcops rounds fp32 weights inside
the product, as under autocast; torch receives bf16 matrices, without the cast that training needs.

Legend: N batch, T tokens, D width, H heads, K head width, E width of a hidden layer; M rows of a matrix, F output
features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dithc import hcops
from dithc.bench.ceilings import Precision
from dithc.bench.libraries import LIBRARIES, linear_by
from dithc.bench.operators.settings import (
    TYPES,
    Case,
    Run,
    as_output,
    backward_of,
    our_passes,
    passes,
    precision,
    random,
)
from dithc.bench.operators.shapes import PASSES, Layer, Pass, module_layers
from dithc.hcops import reference
from dithc.log import problem
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
    wanted: Sequence[str],
    *,
    models: Sequence[str],
    dtypes: Sequence[Precision],
    size_bytes: int,
    libraries: Sequence[str] = (),
) -> Iterator[Case]:
    """Yield the cases one by one. Each case is freed before the next.

    Raises:
        UserError: an operator, model or library is unknown.
    """
    for what, names, known in (("ops", wanted, OPS), ("models", models, PRESETS), ("libraries", libraries, LIBRARIES)):
        unknown = [name for name in names if name not in known]
        if unknown or not (names or what == "libraries"):
            expected = f"names among {', '.join(known)}"
            raise problem(f"bench ops --{what}", got=",".join(unknown), expected=expected, fix=f"correct --{what}")
    for op in wanted:
        for dtype in dtypes:
            if op == "gemm":
                for model in models:
                    yield from gemm(model, dtype, libraries)
            elif op == "attention":
                yield from attention(dtype)
            elif op != "adamw" or dtype == "fp32":  # optimizer arrays are always fp32
                with precision(dtype):
                    case = MEMORY_BOUND[op](dtype, size_bytes)
                yield case


def gemm(model: str, dtype: Precision, libraries: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the three products of each module in table 4, by dithc, PyTorch and the available libraries."""
    batch = BATCHES.get(model, OTHER_BATCH)
    for layer in module_layers(PRESETS[model], batch=batch):
        for of in PASSES:
            m, n, k = layer.product(of)
            with precision(dtype):
                ours = our_linear_run(layer, of, dtype)
                eager = linear_run(layer, of, F.linear, dtype, weight_dtype=TYPES[dtype])
                others: dict[str, Mapping[str, Run]] = {
                    name: {of: linear_run(layer, of, linear_by(LIBRARIES[name]), dtype, weight_dtype=TYPES[dtype])}
                    for name in libraries
                    if LIBRARIES[name].obstacle(dtype) is None
                }
            yield Case(
                op="gemm",
                group=f"gemm {model}",
                name=f"{layer.name} {of}",
                dtype=dtype,
                shape={"m": m, "n": n, "k": k},
                limit="multiply_add",
                work=layer.flop,
                counted="2 m n k",
                ways={"hcops": {of: ours}, "eager": {of: eager}, **others},
            )


def linear_run(
    layer: Layer,
    of: Pass,
    linear: Callable[..., Tensor],
    dtype: Precision,
    *,
    weight_dtype: torch.dtype,
    place: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Run:
    """Return a function for one product of a linear layer, with its bias or bias gradient, as in training."""
    x = place(random(layer.rows, layer.in_features, dtype=TYPES[dtype]))  # (M, K)
    weight = random(layer.out_features, layer.in_features, dtype=weight_dtype, seed=1)  # (F, K)
    bias = random(layer.out_features, dtype=weight_dtype, seed=2)  # (F)
    wanted = {"forward": [x, weight, bias], "grad_input": [x], "grad_weight": [weight, bias]}[of]
    for tensor in wanted:
        tensor.requires_grad_()
    if of == "forward":
        return lambda: linear(x, weight, bias)
    dout = random(layer.rows, layer.out_features, dtype=TYPES[dtype], seed=3)  # (M, F)
    return backward_of(linear(x, weight, bias), wanted, place(dout))


def our_linear_run(layer: Layer, of: Pass, dtype: Precision) -> Run:
    """Return the same product by hcops: fp32 weights, inputs in the pool."""
    return linear_run(layer, of, hcops.linear, dtype, weight_dtype=torch.float32, place=as_output)


def attention(dtype: Precision) -> Iterator[Case]:
    """Yield the forward and backward pass at the heads of S/2 and XL/2."""
    for heads, width, images in ATTENTION_SHAPES:
        qkv = random(images, TOKENS, 3 * heads * width, dtype=TYPES[dtype])  # (N, T, 3D)
        dout = random(images, TOKENS, heads * width, seed=1)  # (N, T, D)
        with precision(dtype):
            ours = our_passes(lambda x, h=heads: hcops.attention(x, h), [qkv], dout)
            eager = passes(lambda x, h=heads: reference.attention(x, h), [qkv], dout)
        product = 2 * images * heads * TOKENS * TOKENS * width
        yield Case(
            op="attention",
            group="attention",
            name=f"K={width}",
            dtype=dtype,
            shape={"N": images, "T": TOKENS, "H": heads, "K": width},
            limit="multiply_add",
            work=6 * product,
            counted="two products forward, four backward, without recomputation",
            ways={"hcops": ours, "eager": eager},
        )


def _images(size_bytes: int, width: int) -> int:
    """Return the number of images for an fp32 activation (N, T, width) of about `size_bytes`."""
    return max(1, size_bytes // (FP32_BYTES * TOKENS * width))


def gelu(dtype: Precision, size_bytes: int) -> Case:
    """Return the case of the tanh GELU. In the model it is part of a product."""
    return _elementwise("gelu", dtype, size_bytes, hcops.vector.gelu, lambda x: F.gelu(x, approximate="tanh"))


def silu(dtype: Precision, size_bytes: int) -> Case:
    """Return the case of SiLU."""
    return _elementwise("silu", dtype, size_bytes, hcops.vector.silu, F.silu)


def _elementwise(
    op: str, dtype: Precision, size_bytes: int, ours: Callable[[Tensor], Tensor], eager: Callable[[Tensor], Tensor]
) -> Case:
    images = _images(size_bytes, WIDTH)
    x = random(images, TOKENS, WIDTH, dtype=TYPES[dtype])  # (N, T, D)
    dout = random(images, TOKENS, WIDTH, dtype=TYPES[dtype], seed=1)  # (N, T, D)
    return _memory_bound(
        op,
        dtype,
        images,
        work=5 * images * TOKENS * WIDTH * TYPES[dtype].itemsize,
        counted="forward reads x, writes y; backward reads dy and x, writes dx",
        ways={"hcops": our_passes(ours, [x], dout), "eager": passes(eager, [x], dout)},
    )


def adaln(dtype: Precision, size_bytes: int) -> Case:
    """Return the case of the original blocks' modulated LayerNorm."""
    return _modulated_norm("adaln", dtype, size_bytes, hcops.vector.adaln, reference.adaln)


def adarms(dtype: Precision, size_bytes: int) -> Case:
    """Return the case of newer blocks' modulated RMSNorm."""
    return _modulated_norm("adarms", dtype, size_bytes, partial(hcops.vector.adaln, rms=True), reference.adarms)


def _modulated_norm(
    op: str, dtype: Precision, size_bytes: int, ours: Callable[..., Tensor], theirs: Callable[..., Tensor]
) -> Case:
    """Return a case with an fp32 residual stream. In bf16 the result is bf16 for the next linear layer."""
    images, out_bytes = _images(size_bytes, WIDTH), TYPES[dtype].itemsize
    inputs = [random(images, TOKENS, WIDTH)]  # (N, T, D)
    inputs += [random(images, WIDTH, dtype=TYPES[dtype], seed=seed) for seed in (1, 2)]  # (N, D)
    dout = random(images, TOKENS, WIDTH, seed=3)  # (N, T, D)
    eager = lambda x, shift, scale: theirs(x, shift, scale, 1e-6).to(TYPES[dtype])  # noqa: E731
    return _memory_bound(
        op,
        dtype,
        images,
        work=images * TOKENS * WIDTH * (3 * FP32_BYTES + 2 * out_bytes),
        counted="forward reads x, writes y; backward reads dy and x, writes dx; excluding (N, D) and (N, T) arrays",
        ways={"hcops": our_passes(ours, inputs, dout), "eager": passes(eager, inputs, dout)},
    )


def gate_residual(dtype: Precision, size_bytes: int) -> Case:
    """Return the case with an fp32 residual stream, and gate and branch in the type of the case."""
    images, branch_bytes = _images(size_bytes, WIDTH), TYPES[dtype].itemsize
    inputs = [
        random(images, TOKENS, WIDTH),  # (N, T, D)
        random(images, WIDTH, dtype=TYPES[dtype], seed=1),  # (N, D)
        random(images, TOKENS, WIDTH, dtype=TYPES[dtype], seed=2),  # (N, T, D)
    ]
    dout = random(images, TOKENS, WIDTH, seed=3)  # (N, T, D)
    return _memory_bound(
        "gate_residual",
        dtype,
        images,
        work=images * TOKENS * WIDTH * (3 * FP32_BYTES + 3 * branch_bytes),
        counted="forward reads x and y, writes out; backward reads dout and y, writes dy (dx is dout)",
        ways={
            "hcops": our_passes(hcops.vector.gate_residual, inputs, dout),
            "eager": passes(reference.gate_residual, inputs, dout),
        },
    )


def rotate_heads(dtype: Precision, size_bytes: int) -> Case:
    """Return the case of the rotary embedding of q and k without their norms."""
    images = _images(size_bytes, 3 * WIDTH)
    qkv = random(images, TOKENS, 3 * WIDTH, dtype=TYPES[dtype])  # (N, T, 3D)
    dout = random(images, TOKENS, 3 * WIDTH, dtype=TYPES[dtype], seed=1)  # (N, T, 3D)
    angles = random(TOKENS, WIDTH // HEADS // 2, seed=2)  # (T, K / 2)
    cos, sin = angles.cos(), angles.sin()
    named: dict[str, Any] = {"cos": cos, "sin": sin, "query_weight": None, "key_weight": None}
    return _memory_bound(
        "rotate_heads",
        dtype,
        images,
        work=4 * 3 * images * TOKENS * WIDTH * TYPES[dtype].itemsize,
        counted="forward reads qkv, writes the rotated qkv; backward reads dout, writes dqkv; excluding (T, K / 2) "
        "tables",
        ways={
            "hcops": our_passes(lambda x: hcops.vector.rotate_heads(x, HEADS, **named), [qkv], dout),
            "eager": passes(lambda x: reference.rotate_heads(x, HEADS, cos, sin, None, None, 1e-6), [qkv], dout),
        },
        sizes={"D": WIDTH, "H": HEADS, "K": WIDTH // HEADS},
    )


def swiglu(dtype: Precision, size_bytes: int) -> Case:
    """Return the case of a gated hidden layer with gates and values in one array."""
    images = _images(size_bytes, 2 * HIDDEN)
    x = random(images, TOKENS, 2 * HIDDEN, dtype=TYPES[dtype])  # (N, T, 2E)
    dout = random(images, TOKENS, HIDDEN, dtype=TYPES[dtype], seed=1)  # (N, T, E)
    return _memory_bound(
        "swiglu",
        dtype,
        images,
        work=8 * images * TOKENS * HIDDEN * TYPES[dtype].itemsize,
        counted="forward reads gates and values, writes y; backward reads dy, gates and values, writes the gradients "
        "of both",
        ways={"hcops": our_passes(hcops.vector.swiglu, [x], dout), "eager": passes(reference.swiglu, [x], dout)},
        sizes={"E": HIDDEN},
    )


def adamw(dtype: Precision, size_bytes: int) -> Case:
    """Return the case of norm, clipping, update and moving average of `size_bytes` of weights."""
    count = max(1, size_bytes // (FP32_BYTES * PARAMETER_SHAPE[0] * PARAMETER_SHAPE[1]))
    ours = [[random(*PARAMETER_SHAPE, seed=list_ * count + i) for i in range(count)] for list_ in range(2)]
    ours += [[torch.zeros(PARAMETER_SHAPE) for _ in range(count)] for _ in range(2)]  # moments
    ours.append([tensor.clone() for tensor in ours[0]])
    elements = count * PARAMETER_SHAPE[0] * PARAMETER_SHAPE[1]
    return Case(
        op="adamw",
        group="memory-bound",
        name="adamw",
        dtype=dtype,
        shape={"tensors": count, "elements": elements},
        limit="copy",
        work=10 * elements * FP32_BYTES,
        counted="the norm reads gradients; the update reads weight, gradient, two moments and average, writes these "
        "except the gradient",
        ways={
            "hcops": {"update": _our_update(*ours)},
            "eager": {"update": _torch_update(ours[0], ours[1], ours[4], fused=True)},
            "foreach": {"update": _torch_update(ours[0], ours[1], ours[4], foreach=True)},
        },
    )


def _our_update(
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


def _torch_update(weights: list[Tensor], gradients: list[Tensor], averages: list[Tensor], **how: Any) -> Run:
    parameters = [torch.nn.Parameter(weight) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer = torch.optim.AdamW(parameters, **ADAMW, **how)

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, LARGEST_NORM)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(averages, [parameter.detach() for parameter in parameters], 1 - EMA_DECAY)

    return run


def _memory_bound(
    op: str,
    dtype: Precision,
    images: int,
    *,
    work: float,
    counted: str,
    ways: Mapping[str, Mapping[str, Run]],
    sizes: Mapping[str, int] | None = None,
) -> Case:
    """Return a case of (N, T, D) arrays, unless `sizes` replaces D."""
    shape = {"N": images, "T": TOKENS} | dict(sizes or {"D": WIDTH})
    named: dict[str, Any] = {"op": op, "group": "memory-bound", "name": op, "limit": "copy"}
    return Case(**named, dtype=dtype, shape=shape, work=work, counted=counted, ways=ways)


MEMORY_BOUND: Mapping[str, Callable[[Precision, int], Case]] = {
    "gelu": gelu,
    "adaln": adaln,
    "adarms": adarms,
    "gate_residual": gate_residual,
    "rotate_heads": rotate_heads,
    "silu": silu,
    "swiglu": swiglu,
    "adamw": adamw,
}
OPS = ("gemm", "attention", *MEMORY_BOUND)
