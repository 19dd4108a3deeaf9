"""Matrix products and attention as compiled loops: operands packed into panels, blocks of C in registers.

A panel contains ROWS rows of A, or COLUMNS columns of B, depth by depth, padded with zeros, so that
`add_outer_products` needs no special case. Every element of C is summed in the same order in any block, so that results
do not depend on the number of threads.

Legend: C (m, n) = A (m, k) B (k, n); T tokens, H heads, K head width.
"""

import numpy as np

from dithc.engine.hcops.numba.compiler import (
    BF16,
    COLUMNS,
    LANES,
    LINES,
    ROUNDED,
    ROWS,
    Array,
    Either,
    KernelEntry,
    add_outer_products,
    helper,
    load,
    maximum,
    multiply_add,
    narrowed,
    read,
    store,
    transpose_lanes,
    transpose_lines,
    widened,
    write,
)
from dithc.engine.hcops.numba.loops import LOWEST, ONE, ZERO, Fp32, sum_of, sum_of_products
from dithc.engine.hcops.numba.scalar import exp, gelu, gelu_gradient

# Depth per visit of a block of C. A panel of B (192 x COLUMNS fp32, 24 KB with 512-bit vectors) stays in a 32 KB L1
# cache.
DEPTH_PER_VISIT = 192
# Depth packed at once, and size of the packed parts. A has 768 KB, which fits a 1 MB L2 cache. B has 4 MB, the share of
# one core in the L3 cache. C is kept in fp32 between two depths.
DEPTH_PACKED = 2048
PACKED_A, PACKED_B = 192 * 1024, 1024 * 1024
# Block of C that is finished together: at most 192 x 128 fp32, 96 KB.
TILE_ROWS, TILE_COLUMNS = 192 // ROWS * ROWS, 128
# Queries that pass through attention together. Their scores (96 x T fp32) stay in the L2 cache up to T = 2,048.
QUERIES = 96


@helper()
def up(count: int, step: int) -> int:
    return (count + step - 1) // step * step


@helper()
def pack(
    source: Array, start: int, line_stride: int, depth_stride: int, lines: int, depth: int, width: int, out: Fp32
) -> None:
    """Pack panels of `width` lines (rows of A, columns of B): out[panel, d, line], with zeros for missing lines."""
    for first in range(0, lines, width):
        panel, count = first * depth, min(width, lines - first)
        base = start + first * line_stride
        if count < width:
            for i in range(depth * width):
                write(out, panel + i, ZERO)
        if line_stride == 1:
            for d in range(depth):
                for line in range(count):
                    write(out, panel + d * width + line, load(source, base + d * depth_stride + line))
            continue
        transposed = depth // LANES * LANES if depth_stride == 1 and count == width else 0
        for d in range(0, transposed, LANES):
            if width == ROWS:
                for i in range(0, ROWS, LINES):
                    transpose_lines(source, base + i * line_stride + d, line_stride, out, panel + d * width + i, width)
            else:
                for i in range(0, COLUMNS, LANES):
                    transpose_lanes(source, base + i * line_stride + d, line_stride, out, panel + d * width + i, width)
        for line in range(count):
            for d in range(transposed, depth):
                write(out, panel + d * width + line, load(source, base + line * line_stride + d * depth_stride))


@helper()
def pack_either(
    source: Either, start: int, line_stride: int, depth_stride: int, lines: int, depth: int, width: int, out: Fp32
) -> None:
    """Call `pack` for a bf16 source or an fp32 source that is rounded to bf16."""
    if source[2] == BF16:
        pack(source[1], start, line_stride, depth_stride, lines, depth, width, out)
    else:
        pack(source[0], start, line_stride, depth_stride, lines, depth, width, out)
    if source[2] == ROUNDED:
        for i in range(up(lines, width) * depth):
            write(out, i, widened(narrowed(read(out, i))))


@helper()
def add_product(a: Fp32, b: Fp32, b_start: int, rows: int, columns: int, depth: int, c: Fp32, c_stride: int) -> None:
    """Add A B of packed A and B to c, which has complete blocks: rows up to ROWS, columns up to COLUMNS."""
    for j in range(0, columns, COLUMNS):
        for d in range(0, depth, DEPTH_PER_VISIT):
            visit = min(DEPTH_PER_VISIT, depth - d)
            for i in range(0, rows, ROWS):
                add_outer_products(
                    a, i * depth + d * ROWS, b, b_start + j * depth + d * COLUMNS, visit, c, i * c_stride + j, c_stride
                )


@helper()
def finish(
    tile: Fp32, base: int, count: int, target: int, column: int, out: Either, before: Either, gelu_at: Either, residual: Either,
    bias: Fp32, gate: Fp32, gate0: int, use_gelu: bool,
) -> None:  # fmt: skip
    """Finish a row of a block of C: bias, copy, GELU, gradient of GELU, gate, residual, each if requested."""
    if bias.size:
        for j in range(count):
            write(tile, base + j, read(tile, base + j) + read(bias, column + j))
    if before[0].size or before[1].size:
        for j in range(count):
            store(before, target + j, read(tile, base + j))
    if use_gelu:
        for j in range(count):
            write(tile, base + j, gelu(read(tile, base + j)))
    if gelu_at[0].size or gelu_at[1].size:
        for j in range(count):
            write(tile, base + j, read(tile, base + j) * gelu_gradient(load(gelu_at, target + j)))
    if gate.size:
        for j in range(count):
            value = multiply_add(read(gate, gate0 + j), read(tile, base + j), load(residual, target + j))
            write(tile, base + j, value)
    for j in range(count):
        store(out, target + j, read(tile, base + j))


@KernelEntry
def gemm(
    m0: int, m1: int, n0: int, n1: int, n: int, k: int, a: Either, a_row: int, a_depth: int, b: Either, b_column: int,
    b_depth: int, partial: Fp32, accumulate: bool, out: Either, before: Either, gelu_at: Either, residual: Either,
    bias: Fp32, gate: Fp32, rows_per_gate: int, use_gelu: bool,
) -> None:  # fmt: skip
    """Compute rows m0 to m1, columns n0 to n1 of out (m, n) = finish(A B), or add them to `partial`.

    `partial` (m, n) holds C between two packed depths; it is `out` itself if that is fp32.
    """
    depth = min(max(k, 1), DEPTH_PACKED)
    block_rows = min(max(PACKED_A // depth // ROWS * ROWS, ROWS), TILE_ROWS, up(m1 - m0, ROWS))
    block_columns = min(max(PACKED_B // depth // TILE_COLUMNS, 1) * TILE_COLUMNS, up(n1 - n0, COLUMNS))
    packed_a = np.empty(block_rows * depth, np.float32)
    packed_b = np.empty(block_columns * depth, np.float32)
    tile = np.empty(block_rows * TILE_COLUMNS, np.float32)
    for k0 in range(0, max(k, 1), DEPTH_PACKED):
        block_depth, is_last, is_first = min(depth, k - k0), k0 + DEPTH_PACKED >= k, k0 == 0 and not accumulate
        for j0 in range(n0, n1, block_columns):
            columns = min(block_columns, n1 - j0)
            pack_either(b, j0 * b_column + k0 * b_depth, b_column, b_depth, columns, block_depth, COLUMNS, packed_b)
            for i0 in range(m0, m1, block_rows):
                rows = min(block_rows, m1 - i0)
                pack_either(a, i0 * a_row + k0 * a_depth, a_row, a_depth, rows, block_depth, ROWS, packed_a)
                for j in range(0, columns, TILE_COLUMNS):
                    count = min(TILE_COLUMNS, columns - j)
                    tile[:] = ZERO
                    if not is_first:
                        for i in range(rows):
                            for t in range(count):
                                write(tile, i * TILE_COLUMNS + t, read(partial, (i0 + i) * n + j0 + j + t))
                    add_product(packed_a, packed_b, j * block_depth, rows, count, block_depth, tile, TILE_COLUMNS)
                    for i in range(rows):
                        target, base = (i0 + i) * n + j0 + j, i * TILE_COLUMNS
                        if is_last:
                            gate0 = (i0 + i) // rows_per_gate * n + j0 + j
                            finish(
                                tile, base, count, target, j0 + j, out, before, gelu_at, residual, bias, gate, gate0, use_gelu
                            )  # fmt: skip
                        else:
                            for t in range(count):
                                write(partial, target + t, read(tile, base + t))


@helper()
def exponentials(scores: Fp32, base: int, count: int, factor: np.float32, shift: np.float32) -> None:
    for j in range(count):
        write(scores, base + j, exp(multiply_add(factor, read(scores, base + j), -shift)))


@KernelEntry
def attention_forward(
    begin: int, end: int, tokens: int, heads: int, width: int, qkv: Array, out: Array, lse: Fp32
) -> None:
    """Compute softmax(q k^T / sqrt(K)) v of heads, counted over all images, and the log of each row's sum."""
    factor = ONE / np.sqrt(np.float32(width))
    keys, values, row = up(tokens, COLUMNS), up(width, COLUMNS), 3 * heads * width
    queries = min(QUERIES, up(tokens, ROWS))
    packed_k, packed_v = np.empty(keys * width, np.float32), np.empty(values * tokens, np.float32)
    packed_q, packed_p = np.empty(queries * width, np.float32), np.empty(queries * tokens, np.float32)
    scores, mixed = np.empty(queries * keys, np.float32), np.empty(queries * values, np.float32)
    sums = np.empty(queries, np.float32)
    for unit in range(begin, end):
        image, head = unit // heads, unit % heads
        q = image * tokens * row + head * width
        k, v = q + heads * width, q + 2 * heads * width
        pack(qkv, k, row, 1, tokens, width, COLUMNS, packed_k)
        pack(qkv, v, 1, row, width, tokens, COLUMNS, packed_v)
        for first in range(0, tokens, queries):
            count = min(queries, tokens - first)
            pack(qkv, q + first * row, row, 1, count, width, ROWS, packed_q)
            scores[:] = ZERO
            add_product(packed_q, packed_k, 0, count, keys, width, scores, keys)
            for i in range(count):
                largest = LOWEST
                for j in range(tokens):
                    largest = maximum(largest, read(scores, i * keys + j))
                exponentials(scores, i * keys, tokens, factor, largest * factor)
                sums[i] = sum_of(scores, i * keys, tokens)
                write(lse, unit * tokens + first + i, largest * factor + np.float32(np.log(sums[i])))
            pack(scores, 0, keys, 1, count, tokens, ROWS, packed_p)
            mixed[:] = ZERO
            add_product(packed_p, packed_v, 0, count, values, tokens, mixed, values)
            for i in range(count):
                base, inverse = ((image * tokens + first + i) * heads + head) * width, ONE / sums[i]
                for j in range(width):
                    store(out, base + j, read(mixed, i * values + j) * inverse)


@KernelEntry
def attention_backward(
    begin: int, end: int, tokens: int, heads: int, width: int, dout: Array, qkv: Array, out: Array, lse: Fp32, dqkv: Array
) -> None:  # fmt: skip
    """Recompute P and its gradient dS = P (dP - sum(dout out)) of heads, a few queries at a time."""
    factor = ONE / np.sqrt(np.float32(width))
    keys, values, row = up(tokens, COLUMNS), up(width, COLUMNS), 3 * heads * width
    queries, key_rows = min(QUERIES, up(tokens, ROWS)), up(tokens, ROWS)
    k_for_scores, v_for_scores = np.empty(keys * width, np.float32), np.empty(keys * width, np.float32)
    k_for_dq, packed_query = np.empty(values * tokens, np.float32), np.empty(queries * width, np.float32)
    packed_p, packed_right = np.empty(key_rows * queries, np.float32), np.empty(values * queries, np.float32)
    p, ds = np.empty(queries * keys, np.float32), np.empty(queries * keys, np.float32)
    dq, dk = np.empty(queries * values, np.float32), np.empty(key_rows * values, np.float32)
    dv = np.empty_like(dk)
    for unit in range(begin, end):
        image, head = unit // heads, unit % heads
        q = image * tokens * row + head * width
        k, v, o = q + heads * width, q + 2 * heads * width, (image * tokens * heads + head) * width
        pack(qkv, k, row, 1, tokens, width, COLUMNS, k_for_scores)
        pack(qkv, v, row, 1, tokens, width, COLUMNS, v_for_scores)
        pack(qkv, k, 1, row, width, tokens, COLUMNS, k_for_dq)
        dk[:] = ZERO
        dv[:] = ZERO
        for first in range(0, tokens, queries):
            count = min(queries, tokens - first)
            q0, o0 = q + first * row, o + first * heads * width
            p[:] = ZERO
            pack(qkv, q0, row, 1, count, width, ROWS, packed_query)
            add_product(packed_query, k_for_scores, 0, count, keys, width, p, keys)
            ds[:] = ZERO
            pack(dout, o0, heads * width, 1, count, width, ROWS, packed_query)
            add_product(packed_query, v_for_scores, 0, count, keys, width, ds, keys)
            for i in range(count):
                exponentials(p, i * keys, tokens, factor, read(lse, unit * tokens + first + i))
                delta = sum_of_products(dout, out, o0 + i * heads * width, width)
                for j in range(i * keys, i * keys + tokens):
                    write(ds, j, read(p, j) * (read(ds, j) - delta))
            pack(p, 0, 1, keys, tokens, count, ROWS, packed_p)
            pack(dout, o0, 1, heads * width, width, count, COLUMNS, packed_right)
            add_product(packed_p, packed_right, 0, tokens, values, count, dv, values)
            pack(ds, 0, 1, keys, tokens, count, ROWS, packed_p)
            pack(qkv, q0, 1, row, width, count, COLUMNS, packed_right)
            add_product(packed_p, packed_right, 0, tokens, values, count, dk, values)
            dq[:] = ZERO
            pack(ds, 0, keys, 1, count, tokens, ROWS, packed_p)
            add_product(packed_p, k_for_dq, 0, count, values, tokens, dq, values)
            for i in range(count):
                for j in range(width):
                    store(dqkv, q0 + i * row + j, read(dq, i * values + j) * factor)
        for i in range(tokens):
            for j in range(width):
                store(dqkv, k + i * row + j, read(dk, i * values + j) * factor)
            for j in range(width):
                store(dqkv, v + i * row + j, read(dv, i * values + j))
