"""RMSNorm and rotation of the heads of q and k: compiled loops and raw kernels.

Arrays are flat and arithmetic is fp32. Sums over tokens use blocks as in `loops.py`.

Legend: N batch, T tokens, D width, H heads, K head width (D = H * K).
"""

import numpy as np
import torch
from torch import Tensor

from dithc.engine.hcops.checks import CONSTANTS, check_rotation, check_shape, fp32, typed
from dithc.engine.hcops.numba.compiler import Array, KernelEntry, helper, load, multiply_add, read, store, write
from dithc.engine.hcops.numba.loops import ONE, TOKENS_PER_BLOCK, ZERO, Fp32
from dithc.engine.hcops.numba.operators import NO_FP32, add_blocks, flat, flats
from dithc.engine.hcops.numba.threads import run


def rotate_heads_forward(qkv: Tensor, num_heads: int, eps: float, *constants: Tensor | None) -> Tensor:
    op = "rotate_heads"
    n, t, _, k = check_rotation(op, qkv, num_heads, *constants)
    out = torch.empty_like(qkv)
    arrays = *_constants(op, *constants), *flats(op, qkv=qkv, out=out)
    run(rotate_forward, n * t, t, num_heads, k, np.float32(eps), *arrays, elements=qkv.numel())
    return out  # (N, T, 3D)


def rotate_heads_backward(
    dout: Tensor, qkv: Tensor | None, num_heads: int, eps: float, *constants: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    op, has_weights = "rotate_heads_backward", constants[2] is not None
    n, t, _, k = check_rotation(op, dout, num_heads, *constants)
    blocks = -(-t // TOKENS_PER_BLOCK)
    if has_weights:
        assert qkv is not None, "the gradient of a norm needs its input"
        check_shape(op, dout.shape, qkv=qkv)
        typed(op, "qkv", qkv, dout.dtype)
    dqkv, source = torch.empty_like(dout), dout if qkv is None else qkv
    sums, rotated = np.zeros(n * blocks * 2 * k, np.float32), np.empty(n * blocks * k, np.float32)
    arrays = *_constants(op, *constants), *flats(op, dout=dout, qkv=source, dqkv=dqkv), rotated, sums
    run(rotate_backward, n * blocks, t, num_heads, k, np.float32(eps), *arrays, elements=dout.numel())
    if not has_weights:
        return dqkv, None, None
    dquery, dkey = add_blocks(sums, (1, n * blocks, 2 * k)).view(2, k).unbind(0)
    return dqkv, dquery.clone(), dkey.clone()  # (N, T, 3D), (K), (K)


def _constants(op: str, *constants: Tensor | None) -> tuple[Array, Array, Array]:
    """Return cosines, sines, and the weights of q followed by the weights of k; empty arrays for None."""
    for name, tensor in zip(CONSTANTS, constants, strict=True):
        if tensor is not None:
            fp32(op, name, tensor)
    cos, sin, query_weight, key_weight = constants
    tables = (NO_FP32, NO_FP32) if cos is None or sin is None else (flat(op, "cos", cos), flat(op, "sin", sin))
    if query_weight is None or key_weight is None:
        return *tables, NO_FP32
    return *tables, flat(op, "weights", torch.cat([query_weight.detach(), key_weight.detach()]))


@helper(reorder=True)
def _sum_of_squares(x: Array, start: int, count: int) -> np.float32:
    total = ZERO
    for j in range(count):
        total += load(x, start + j) * load(x, start + j)
    return total


@helper(reorder=True)
def _sum_of_weighted(x: Array, start: int, y: Fp32, y_start: int, weights: Fp32, weight: int, count: int) -> np.float32:
    total = ZERO
    for j in range(count):
        total += load(x, start + j) * (read(y, y_start + j) * read(weights, weight + j))
    return total


@helper()
def _copy(source: Array, target: Array, start: int, count: int) -> None:
    for j in range(start, start + count):
        write(target, j, read(source, j))


@KernelEntry
def rotate_forward(
    begin: int, end: int, tokens: int, heads: int, width: int, eps: np.float32,
    cos: Fp32, sin: Fp32, weights: Fp32, qkv: Array, out: Array,
) -> None:  # fmt: skip
    """Compute rows (tokens): the norm if weights are present, then the rotation if angles are, of heads of q and k."""
    half = width // 2
    for row in range(begin, end):
        first, angles = row * 3 * heads * width, row % tokens * half
        for number in range(2 * heads):
            base, weight, rstd = first + number * width, number // heads * width, ONE
            if weights.size:
                rstd = ONE / np.sqrt(_sum_of_squares(qkv, base, width) / np.float32(width) + eps)
            if cos.size:
                for i in range(half):
                    a, b = load(qkv, base + 2 * i), load(qkv, base + 2 * i + 1)
                    if weights.size:
                        a *= rstd * read(weights, weight + 2 * i)
                        b *= rstd * read(weights, weight + 2 * i + 1)
                    c, s = read(cos, angles + i), read(sin, angles + i)
                    store(out, base + 2 * i, multiply_add(-b, s, a * c))
                    store(out, base + 2 * i + 1, multiply_add(a, s, b * c))
            elif weights.size:
                for j in range(width):
                    store(out, base + j, load(qkv, base + j) * (rstd * read(weights, weight + j)))
            else:
                _copy(qkv, out, base, width)
        _copy(qkv, out, first + 2 * heads * width, heads * width)


@KernelEntry
def rotate_backward(
    begin: int, end: int, tokens: int, heads: int, width: int, eps: np.float32,
    cos: Fp32, sin: Fp32, weights: Fp32, dout: Array, qkv: Array, dqkv: Array, rotated: Fp32, sums: Fp32,
) -> None:  # fmt: skip
    """Compute blocks of tokens: with h = dout rotated back, dx = rstd (w h - xh mean(w h xh)).

    A row of `sums`, zero at first, receives the sums of h xh for q and for k. Without weights dx = h. `rotated` holds h.
    """
    half, blocks = width // 2, (tokens + TOKENS_PER_BLOCK - 1) // TOKENS_PER_BLOCK
    for block in range(begin, end):
        first_token, h = block % blocks * TOKENS_PER_BLOCK, block * width
        for token in range(first_token, min(first_token + TOKENS_PER_BLOCK, tokens)):
            first, angles = (block // blocks * tokens + token) * 3 * heads * width, token * half
            for number in range(2 * heads):
                base, weight = first + number * width, number // heads * width
                if cos.size:
                    for i in range(half):
                        a, b = load(dout, base + 2 * i), load(dout, base + 2 * i + 1)
                        c, s = read(cos, angles + i), read(sin, angles + i)
                        write(rotated, h + 2 * i, multiply_add(b, s, a * c))
                        write(rotated, h + 2 * i + 1, multiply_add(-a, s, b * c))
                else:
                    for j in range(width):
                        write(rotated, h + j, load(dout, base + j))
                if weights.size:
                    count, sums_base = np.float32(width), 2 * block * width + weight
                    rstd = ONE / np.sqrt(_sum_of_squares(qkv, base, width) / count + eps)
                    mean = rstd * _sum_of_weighted(qkv, base, rotated, h, weights, weight, width) / count
                    for j in range(width):
                        xh = load(qkv, base + j) * rstd
                        write(sums, sums_base + j, multiply_add(read(rotated, h + j), xh, read(sums, sums_base + j)))
                    for j in range(width):
                        xh = load(qkv, base + j) * rstd
                        store(dqkv, base + j, rstd * (read(rotated, h + j) * read(weights, weight + j) - xh * mean))
                else:
                    for j in range(width):
                        store(dqkv, base + j, read(rotated, h + j))
            _copy(dout, dqkv, first + 2 * heads * width, heads * width)
