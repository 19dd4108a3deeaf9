"""Memory-bound operators as compiled loops. Each call covers a range of rows, blocks or elements for one thread.

A kernel writes only elements of its range. Sums over tokens are taken within blocks of a fixed length, then over the
blocks in order, so that results do not depend on the number of threads.

Legend: N images, T tokens, D width; arrays are flat, fp32 or bf16, arithmetic is fp32.
"""

import numpy as np
from numpy.typing import NDArray

from dithc.engine.hcops.numba.compiler import (
    Array,
    KernelEntry,
    helper,
    load,
    multiply_add,
    read,
    store,
    write,
)
from dithc.engine.hcops.numba.scalar import gelu, gelu_gradient, silu, silu_gradient

Fp32 = NDArray[np.float32]
ONE, ZERO = np.float32(1), np.float32(0)
LOWEST = np.float32(-np.inf)

# Rows of one partial sum over tokens: writes are 1/64 of reads, and 256 tokens still make 4 parts.
TOKENS_PER_BLOCK = 64
# Elements of one partial sum over a tensor, in float64.
ELEMENTS_PER_BLOCK = 16384
# Elements that pass through all steps of AdamW together. Six arrays of 4 KB fit any L1 cache.
ADAMW_BLOCK = 1024


@KernelEntry
def gelu_forward(begin: int, end: int, x: Array, out: Array) -> None:
    for i in range(begin, end):
        store(out, i, gelu(load(x, i)))


@KernelEntry
def gelu_backward(begin: int, end: int, dout: Array, x: Array, dx: Array) -> None:
    """dx = dout gelu'(x)."""
    for i in range(begin, end):
        store(dx, i, load(dout, i) * gelu_gradient(load(x, i)))


@KernelEntry
def silu_forward(begin: int, end: int, x: Array, out: Array) -> None:
    for i in range(begin, end):
        store(out, i, silu(load(x, i)))


@KernelEntry
def silu_backward(begin: int, end: int, dout: Array, x: Array, dx: Array) -> None:
    """dx = dout silu'(x)."""
    for i in range(begin, end):
        store(dx, i, load(dout, i) * silu_gradient(load(x, i)))


@KernelEntry
def swiglu_forward(begin: int, end: int, width: int, x: Array, out: Array) -> None:
    """Compute rows of out = silu(gate) value; a row of x contains `width` gates, then as many values."""
    for row in range(begin, end):
        i0 = row * width
        for j in range(width):
            store(out, i0 + j, silu(load(x, 2 * i0 + j)) * load(x, 2 * i0 + width + j))


@KernelEntry
def swiglu_backward(begin: int, end: int, width: int, dout: Array, x: Array, dx: Array) -> None:
    """Rows of dgate = dout value silu'(gate) and dvalue = dout silu(gate)."""
    for row in range(begin, end):
        i0 = row * width
        for j in range(width):
            store(dx, 2 * i0 + j, load(dout, i0 + j) * load(x, 2 * i0 + width + j) * silu_gradient(load(x, 2 * i0 + j)))
        for j in range(width):
            store(dx, 2 * i0 + width + j, load(dout, i0 + j) * silu(load(x, 2 * i0 + j)))


@KernelEntry
def scale_add(begin: int, end: int, alpha: np.float32, x: Array, beta: np.float32, y: Array, out: Array) -> None:
    for i in range(begin, end):
        store(out, i, multiply_add(alpha, load(x, i), beta * load(y, i)))


@KernelEntry
def scale(begin: int, end: int, alpha: np.float32, x: Array, out: Array) -> None:
    for i in range(begin, end):
        store(out, i, alpha * load(x, i))


@helper(reorder=True)
def sum_of(x: Array, start: int, count: int) -> np.float32:
    total = ZERO
    for j in range(count):
        total += load(x, start + j)
    return total


@helper(reorder=True)
def _sum_of_squared_deviations(x: Array, start: int, count: int, mean: np.float32) -> np.float32:
    total = ZERO
    for j in range(count):
        deviation = load(x, start + j) - mean
        total += deviation * deviation
    return total


@KernelEntry
def adaln_forward(
    begin: int, end: int, tokens: int, width: int, eps: np.float32,
    x: Array, shift: Fp32, scale: Fp32, out: Array, means: Fp32, rstds: Fp32,
) -> None:  # fmt: skip
    """Compute rows of out = (x - mean) rstd (1 + scale) + shift. If `means` is empty, the mean is 0, as in RMSNorm."""
    for row in range(begin, end):
        base, condition = row * width, row // tokens * width
        mean = sum_of(x, base, width) / np.float32(width) if means.size else ZERO
        variance = _sum_of_squared_deviations(x, base, width, mean) / np.float32(width)
        rstd = ONE / np.sqrt(variance + eps)
        for j in range(width):
            normalized = (load(x, base + j) - mean) * rstd
            value = multiply_add(normalized, ONE + read(scale, condition + j), read(shift, condition + j))
            store(out, base + j, value)
        if means.size:
            write(means, row, mean)
        write(rstds, row, rstd)


@helper(reorder=True)
def _sum_of_modulated(dout: Array, start: int, count: int, scale: Fp32, condition: int) -> np.float32:
    total = ZERO
    for j in range(count):
        total += load(dout, start + j) * (ONE + read(scale, condition + j))
    return total


@helper(reorder=True)
def _sum_of_modulated_normalized(
    dout: Array, x: Array, start: int, count: int, scale: Fp32, condition: int, mean: np.float32, rstd: np.float32
) -> np.float32:
    total = ZERO
    for j in range(count):
        normalized = (load(x, start + j) - mean) * rstd
        total += load(dout, start + j) * (ONE + read(scale, condition + j)) * normalized
    return total


@KernelEntry
def adaln_backward(
    begin: int, end: int, tokens: int, width: int, dout: Array, x: Array, scale: Fp32, means: Fp32, rstds: Fp32,
    dstream: Array, dx: Array, dshift: Fp32, dscale: Fp32,
) -> None:  # fmt: skip
    """Compute dx (plus dstream, if not empty) of blocks of tokens.

    Rows of dshift and dscale receive the sums of dout and of dout * normalized per block. RMSNorm if `means` is empty.
    """
    blocks = (tokens + TOKENS_PER_BLOCK - 1) // TOKENS_PER_BLOCK
    for block in range(begin, end):
        image, first = block // blocks, block % blocks * TOKENS_PER_BLOCK
        condition, sums = image * width, block * width
        for j in range(width):
            write(dshift, sums + j, ZERO)
            write(dscale, sums + j, ZERO)
        for token in range(first, min(first + TOKENS_PER_BLOCK, tokens)):
            row = image * tokens + token
            base, rstd, mean, a = row * width, read(rstds, row), ZERO, ZERO
            if means.size:
                mean = read(means, row)
                a = _sum_of_modulated(dout, base, width, scale, condition) / np.float32(width)
            b = _sum_of_modulated_normalized(dout, x, base, width, scale, condition, mean, rstd) / np.float32(width)
            for j in range(width):
                write(dshift, sums + j, read(dshift, sums + j) + load(dout, base + j))
            for j in range(width):
                normalized = (load(x, base + j) - mean) * rstd
                write(dscale, sums + j, multiply_add(load(dout, base + j), normalized, read(dscale, sums + j)))
            if dstream.size:
                for j in range(width):
                    normalized = (load(x, base + j) - mean) * rstd
                    modulated = load(dout, base + j) * (ONE + read(scale, condition + j))
                    store(dx, base + j, rstd * (modulated - a - normalized * b) + load(dstream, base + j))
            else:
                for j in range(width):
                    normalized = (load(x, base + j) - mean) * rstd
                    modulated = load(dout, base + j) * (ONE + read(scale, condition + j))
                    store(dx, base + j, rstd * (modulated - a - normalized * b))


@KernelEntry
def gate_residual_forward(
    begin: int, end: int, tokens: int, width: int, x: Array, gate: Fp32, y: Array, out: Array
) -> None:
    """Rows of out = x + gate y."""
    for row in range(begin, end):
        base, condition = row * width, row // tokens * width
        for j in range(width):
            store(out, base + j, multiply_add(read(gate, condition + j), load(y, base + j), load(x, base + j)))


@KernelEntry
def gate_residual_backward(
    begin: int, end: int, tokens: int, width: int, dout: Array, gate: Fp32, y: Array, dy: Array, dgate: Fp32
) -> None:
    """Blocks of tokens: dy = gate dout, and each block's sum of dout * y in a row of dgate."""
    blocks = (tokens + TOKENS_PER_BLOCK - 1) // TOKENS_PER_BLOCK
    for block in range(begin, end):
        image, first = block // blocks, block % blocks * TOKENS_PER_BLOCK
        condition, sums = image * width, block * width
        for j in range(width):
            write(dgate, sums + j, ZERO)
        for token in range(first, min(first + TOKENS_PER_BLOCK, tokens)):
            base = (image * tokens + token) * width
            for j in range(width):
                write(dgate, sums + j, multiply_add(load(dout, base + j), load(y, base + j), read(dgate, sums + j)))
            for j in range(width):
                store(dy, base + j, read(gate, condition + j) * load(dout, base + j))


@KernelEntry
def column_sums(begin: int, end: int, rows: int, width: int, x: Array, out: Fp32) -> None:
    """Blocks of rows: each block's sum over its rows in a row of out."""
    for block in range(begin, end):
        first, sums = block * TOKENS_PER_BLOCK, block * width
        for j in range(width):
            write(out, sums + j, ZERO)
        for row in range(first, min(first + TOKENS_PER_BLOCK, rows)):
            base = row * width
            for j in range(width):
                write(out, sums + j, read(out, sums + j) + load(x, base + j))


@KernelEntry
def add_blocks(begin: int, end: int, blocks: int, width: int, partial: Fp32, out: Fp32) -> None:
    """Compute out[group] as the sum of the group's `blocks` rows of partial, in order."""
    for group in range(begin, end):
        base = group * width
        for j in range(width):
            write(out, base + j, ZERO)
        for block in range(group * blocks, (group + 1) * blocks):
            for j in range(width):
                write(out, base + j, read(out, base + j) + read(partial, block * width + j))


@helper(reorder=True)
def sum_of_products(x: Array, y: Array, start: int, count: int) -> np.float32:
    total = ZERO
    for j in range(count):
        total += load(x, start + j) * load(y, start + j)
    return total


@helper(reorder=True)
def _sum_of_squares(x: Fp32, start: int, count: int) -> float:
    total = 0.0
    for j in range(count):
        value = np.float64(load(x, start + j))
        total += value * value
    return total


@KernelEntry
def sum_of_squares(begin: int, end: int, x: Fp32, out: NDArray[np.float64]) -> None:
    """Blocks of elements: the sum of x^2."""
    for block in range(begin, end):
        first = block * ELEMENTS_PER_BLOCK
        out[block] = _sum_of_squares(x, first, min(ELEMENTS_PER_BLOCK, x.size - first))


@KernelEntry
def adamw(
    begin: int, end: int, weight: Fp32, gradient: Fp32, first: Fp32, second: Fp32, ema: Fp32, shadow: NDArray[np.uint16],
    gradient_scale: np.float32, keep: np.float32, beta1: np.float32, new1: np.float32, beta2: np.float32,
    new2: np.float32, rate: np.float32, root: np.float32, eps: np.float32, ema_new: np.float32,
) -> None:  # fmt: skip
    """Update moments and weights, then the moving average and bf16 copy if those arrays are not empty.

    Each result has a separate loop, because compilers do not vectorize a loop that must compare six arrays for overlap.
    """
    for start in range(begin, end, ADAMW_BLOCK):
        stop = min(start + ADAMW_BLOCK, end)
        for i in range(start, stop):
            scaled = read(gradient, i) * gradient_scale
            write(first, i, multiply_add(beta1, read(first, i), new1 * scaled))
        for i in range(start, stop):
            scaled = read(gradient, i) * gradient_scale
            write(second, i, multiply_add(beta2, read(second, i), new2 * scaled * scaled))
        for i in range(start, stop):
            update = rate * read(first, i) / multiply_add(np.sqrt(read(second, i)), root, eps)
            write(weight, i, read(weight, i) * keep - update)
        if ema.size:
            for i in range(start, stop):
                write(ema, i, multiply_add(ema_new, read(weight, i) - read(ema, i), read(ema, i)))
        if shadow.size:
            for i in range(start, stop):
                store(shadow, i, read(weight, i))
