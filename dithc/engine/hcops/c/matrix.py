"""Raw matrix kernels of the C back end: linear layers, attention and rotation of heads, without autograd.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K), F output features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dithc.engine import native
from dithc.engine.hcops.c.library import functions, pool, run_recorded, set_packed
from dithc.engine.hcops.checks import (
    CONSTANTS,
    TYPES,
    array,
    check_heads,
    check_linear,
    check_rotation,
    check_shape,
    check_stream,
    condition,
    fp32,
    typed,
)
from dithc.engine.hcops.token_shard import current_shard
from dithc.engine.hcops.tuning import Blocking, Choice, Layout, choice
from dithc.engine.native import signatures

Needs = Sequence[bool]
STREAM = 3  # dimensions of a stream (N, T, D)


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Apply weight (F, D) and bias (F) to x (..., D); `dtype` is the type of the product and the result."""
    m, n, k = check_linear("linear", x, weight, bias)
    tuned = _tuned(m, n, k, "forward", dtype)
    if tuned == "torch":
        return _torch_linear(x, weight, bias, dtype)
    y = pool().empty((*x.shape[:-1], n), dtype)
    _forward_product("linear", x, weight, bias, y, dtype, tuned)
    return y  # (..., F)


def linear_gelu_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *, keep: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return GELU(y) in the tanh form and, if `keep`, y = x W^T + b, which the gradient needs."""
    m, n, k = check_linear("linear_gelu", x, weight, bias)
    y = pool().empty((*x.shape[:-1], n), dtype)
    before = pool().empty(y.shape, dtype) if keep else None
    _forward_product("linear_gelu", x, weight, bias, y, dtype, _cuts(m, n, k, dtype), _address(before), TYPES[dtype], 1)
    return y, before  # (..., F) each


def linear_gate_residual_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gate: Tensor,
    residual: Tensor,
    dtype: torch.dtype,
    *,
    keep: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Return residual + gate * y in the widest type, and y = x W^T + b in `dtype` if `keep`.

    Shapes: x (N, T, D), weight (F, D), bias (F), gate (N, F), residual (N, T, F).
    """
    op = "linear_gate_residual"
    m, n, k = check_linear(op, x, weight, bias)
    images, tokens, _ = check_stream(op, "x", x)
    check_shape(op, (images, tokens, n), residual=residual)
    gate_fields = condition(op, "gate", gate, (images, n))
    residual_fields = array(op, "residual", residual)
    out_type = torch.promote_types(torch.promote_types(residual.dtype, gate.dtype), dtype)
    out = pool().empty(residual.shape, out_type)
    y = pool().empty(residual.shape, dtype) if keep else None
    _forward_product(
        *(op, x, weight, bias, out, dtype, _cuts(m, n, k, dtype), _address(y), TYPES[dtype], 0, None),
        *(*gate_fields, tokens, *residual_fields),
    )
    return out, y  # (N, T, F) each


def linear_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    has_bias: bool,
    needs: Needs,
    out: Tensor | None = None,
    *,
    accumulate: bool = False,
    gelu_at: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return dx in x's type, dw and db in fp32, None for those that `needs` excludes; products use the type of dy.

    `out` (F, D) receives dw, or is added to. `gelu_at` (..., D) has x's type: x is its GELU, and dx its gradient.
    """
    op = "linear_backward"
    m, n, k = check_linear(op, x, weight, None)
    check_shape(op, (*x.shape[:-1], n), dy=dy)
    check_shape(op, x.shape, gelu_at=gelu_at)
    if gelu_at is not None:
        typed(op, "gelu_at", gelu_at, x.dtype)
    dx = _gradient_of_input(op, dy, x, weight, gelu_at, (m, n, k)) if needs[0] else None
    db = torch.empty(n, dtype=torch.float32, device="cpu") if has_bias and needs[2] else None
    dw = None
    if needs[1]:
        check_shape(op, (n, k), out=out)
        dw = pool().empty((n, k), torch.float32) if out is None else out
        _gradient_of_weight(op, dy, x, dw, db, (m, n, k), accumulate=accumulate and out is not None)
    elif db is not None:
        run_recorded()
        torch.sum(dy.reshape(m, n), dim=0, dtype=torch.float32, out=db)
    return dx, dw, db  # (..., D), (F, D), (F)


def rotate_heads_forward(qkv: Tensor, num_heads: int, eps: float, *constants: Tensor | None) -> Tensor:
    """Rotate qkv (N, T, 3D) by cos and sin (T, K / 2), after the norms of weights (K) of q and k; pairs may be None."""
    op = "rotate_heads"
    n, t, _, k = check_rotation(op, qkv, num_heads, *constants)
    address, code = array(op, "qkv", qkv)
    out = pool().empty(qkv.shape, qkv.dtype)
    functions().hc_rotate_heads_forward(
        *(native.context(), n, t, num_heads, k, eps, *_constants(op, *constants), address, out.data_ptr(), code)
    )
    return out  # (N, T, 3D)


def rotate_heads_backward(
    dout: Tensor, qkv: Tensor | None, num_heads: int, eps: float, *constants: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of qkv, in its type, and of the weights, fp32. Without weights qkv may be None."""
    op = "rotate_heads_backward"
    n, t, _, k = check_rotation(op, dout, num_heads, *constants)
    address, code = array(op, "dout", dout)
    dqkv = pool().empty(dout.shape, dout.dtype)
    dquery = dkey = source = None
    if constants[2] is not None:
        assert qkv is not None, "the gradient of a norm needs its input"
        check_shape(op, dout.shape, qkv=qkv)
        source = typed(op, "qkv", qkv, dout.dtype)
        dquery, dkey = (torch.empty(k, dtype=torch.float32, device="cpu") for _ in range(2))
    functions().hc_rotate_heads_backward(
        *(native.context(), n, t, num_heads, k, eps, *_constants(op, *constants)),
        *(address, source, dqkv.data_ptr(), code, _address(dquery), _address(dkey)),
    )
    return dqkv, dquery, dkey  # (N, T, 3D), (K), (K)


def attention_forward(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    """Return the mixed values (N, T, D) and the logarithms of the sums of exponentials (N, H, T)."""
    n, t, d, k = check_heads("attention", qkv, num_heads)
    address, code = array("attention", "qkv", qkv)
    out, lse = pool().empty((n, t, d), qkv.dtype), pool().empty((n, num_heads, t), torch.float32)
    functions().hc_attention_forward(
        native.context(), n, t, num_heads, k, address, code, out.data_ptr(), code, lse.data_ptr(), code
    )
    return out, lse


def attention_arguments(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, scale: float, causal: bool = False
) -> signatures.AttentionArguments:
    """Describe attention of heads (N, H, T, K) over heads (N, G, S, K), of any strides except the last."""
    n, h, t, k = query.shape
    return signatures.AttentionArguments(
        *(n, t, key.shape[2], h, key.shape[1], k, scale, causal, TYPES[query.dtype]),
        *(head_layout(x) for x in (query, key, value, out)),
        out_lse=lse.data_ptr(),
    )


def head_layout(tensor: Tensor) -> signatures.Heads:
    image, head, token, _ = tensor.stride()
    return signatures.Heads(tensor.data_ptr(), TYPES[tensor.dtype], image, head, token)


def attention_backward(dout: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, num_heads: int) -> Tensor:
    """Return the gradient of `attention_forward`. Products use qkv's type."""
    op = "attention_backward"
    n, t, d, k = check_heads(op, qkv, num_heads)
    check_shape(op, (n, t, d), dout=dout, out=out)
    check_shape(op, (n, num_heads, t), lse=lse)
    address, code = array(op, "qkv", qkv)
    dqkv = pool().empty(qkv.shape, qkv.dtype)
    functions().hc_attention_backward(
        *(native.context(), n, t, num_heads, k, *array(op, "dout", dout), address, code, *array(op, "out", out)),
        *(fp32(op, "lse", lse), dqkv.data_ptr(), code, code),
    )
    return dqkv  # (N, T, 3D)


def _forward_product(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    c: Tensor,
    dtype: torch.dtype,
    tuned: Blocking | None,
    *epilogue: int | None,
) -> None:
    """Compute c = epilogue(x W^T + b). `epilogue` contains the fields of GemmArguments from `before` on."""
    n, k = weight.shape
    rows_like = 0 if not current_shard.tokens else current_shard.tokens if x.dim() == STREAM else 1
    x_address, x_type = array(op, "x", x)
    weight_address, weight_type = array(op, "weight", weight)
    bias_fields = (None, 0) if bias is None else array(op, "bias", bias)
    _gemm(
        tuned,
        *(c.shape[:-1].numel(), n, k, x_address, k, 1, x_type, weight_address, 1, k, weight_type),
        *(c.data_ptr(), n, 1, TYPES[c.dtype], 0, TYPES[dtype], 0, None, *bias_fields, *epilogue),
        rows_like=rows_like,
        weight=weight,
    )


def _gradient_of_input(
    op: str, dy: Tensor, x: Tensor, weight: Tensor, gelu_at: Tensor | None, sizes: tuple[int, int, int]
) -> Tensor:
    """Return dx = dy W (..., D), times gelu'(gelu_at)."""
    m, n, k = sizes
    tuned = _tuned(m, k, n, "grad_input", dy.dtype)
    if tuned == "torch" and gelu_at is not None:
        tuned = None  # the tuning measured a plain product; with the GELU's gradient torch needs another pass
    if tuned == "torch":
        run_recorded()
        with torch.autocast("cpu", enabled=False):  # autocast may be active in a backward pass
            return torch.matmul(dy, weight.to(dy.dtype)).to(x.dtype)
    dy_address, compute = array(op, "dy", dy)
    weight_address, weight_type = array(op, "weight", weight)
    dx = pool().empty(x.shape, x.dtype)
    _gemm(
        tuned,
        *(m, k, n, dy_address, n, 1, compute, weight_address, k, 1, weight_type),
        *(dx.data_ptr(), k, 1, TYPES[x.dtype], 0, compute, 0, None, None, 0, None, 0, 0, _address(gelu_at)),
    )
    return dx


def _gradient_of_weight(
    op: str, dy: Tensor, x: Tensor, dw: Tensor, db: Tensor | None, sizes: tuple[int, int, int], *, accumulate: bool
) -> None:
    """Compute dw = dy^T x (F, D), and db as the sum of dy over rows (F)."""
    m, n, k = sizes
    tuned = _tuned(n, k, m, "grad_weight", dy.dtype)
    # without columns of x, dw is empty, and the library sums dy only together with a product
    if tuned == "torch" or k == 0:
        run_recorded()
        if tuned == "torch":
            with torch.autocast("cpu", enabled=False):
                product = torch.mm(dy.reshape(m, n).t(), x.reshape(m, k).to(dy.dtype))
            torch.add(dw, product, out=dw) if accumulate else dw.copy_(product)
        if db is not None:
            torch.sum(dy.reshape(m, n), dim=0, dtype=torch.float32, out=db)
        return
    dy_address, compute = array(op, "dy", dy)
    x_address, x_type = array(op, "x", x)
    if accumulate and db is not None:
        db.zero_()  # the library adds to both dw and db, or to neither
    _gemm(
        tuned,
        *(n, k, m, dy_address, 1, n, compute, x_address, k, 1, x_type),
        *(fp32(op, "out", dw), k, 1, 0, 0, compute, int(accumulate), None if db is None else db.data_ptr()),
    )


def _gemm(tuned: Blocking | None, *fields: int | None, rows_like: int = 0, weight: Tensor | None = None) -> None:
    """Run a product with the first fields of GemmArguments. `weight` is operand b if it may be packed in advance."""
    arguments = native.GemmArguments(*fields)
    arguments.rows_like = rows_like
    if tuned is not None:
        for name, value in tuned._asdict().items():
            setattr(arguments, name, value)
    set_packed(weight, arguments)
    functions().hc_gemm(native.context(), arguments)


def _tuned(m: int, n: int, k: int, layout: Layout, dtype: torch.dtype) -> Choice | None:
    if current_shard.tokens:  # choices depend on the shape, and parts have many shapes
        return None
    return choice(m, n, k, layout, "bf16" if dtype is torch.bfloat16 else "fp32")


def _cuts(m: int, n: int, k: int, dtype: torch.dtype) -> Blocking | None:
    """Return the tuned cuts of a product with an epilogue, for which torch's product would need more passes."""
    tuned = _tuned(m, n, k, "forward", dtype)
    return None if tuned == "torch" else tuned


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _torch_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Compute torch's own product, which tuning found faster."""
    run_recorded()
    with torch.autocast("cpu", enabled=False):
        return functional.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def _constants(op: str, *constants: Tensor | None) -> tuple[int | None, ...]:
    return tuple(None if x is None else fp32(op, name, x) for name, x in zip(CONSTANTS, constants, strict=True))
