"""Rounding of updates for their exchange: fp32, bf16, or 4-bit integers in blocks with a scale.

Legend: n numbers, b blocks.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64  # numbers that share a scale
LARGEST = 7  # of the 4-bit integers, from -7 to 7
CHUNK = 1 << 18  # numbers of a part, which fit into the cache of a core
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def chunks(size: int) -> Iterator[slice]:
    """Yield parts of `size` numbers, which start at a block."""
    for first in range(0, size, CHUNK):
        yield slice(first, min(first + CHUNK, size))


def empty(size: int, dtype: str) -> dict[str, Tensor]:
    """Return the tensors of a file for `size` numbers: `values`, and for int4 `values` (b, 32) and `scales` (b)."""
    if dtype != "int4":
        return {"values": torch.empty(size, dtype=DTYPES[dtype])}
    blocks = -(-size // BLOCK)
    return {"values": torch.empty(blocks, BLOCK // 2, dtype=torch.uint8), "scales": torch.empty(blocks)}


def check(tensors: Mapping[str, Tensor], dtype: str, *, size: int) -> None:
    """Raise ValueError if the tensors do not describe `size` numbers."""
    for name, expected in empty(size, dtype).items():
        found = tensors.get(name)
        if found is None or found.shape != expected.shape or found.dtype is not expected.dtype:
            got = "none" if found is None else f"{found.dtype} {tuple(found.shape)}"
            raise ValueError(f"{name}: {got} instead of {expected.dtype} {tuple(expected.shape)}")


def encode(numbers: Tensor, tensors: Mapping[str, Tensor], part: slice) -> None:
    """Write fp32 numbers (n) to their part of the tensors of `empty`."""
    if "scales" not in tensors:
        tensors["values"][part] = numbers
        return
    blocks = pad(numbers, (0, -len(numbers) % BLOCK)).view(-1, BLOCK)  # (b, 64)
    scales = blocks.abs().amax(dim=1) / LARGEST  # (b)
    codes = (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round_().add_(LARGEST + 1)
    codes = codes.clamp_(1, 2 * LARGEST + 1).to(torch.uint8)
    of_part = _blocks(part)
    torch.bitwise_or(codes[:, ::2], codes[:, 1::2] << 4, out=tensors["values"][of_part])
    tensors["scales"][of_part] = scales


def decode(tensors: Mapping[str, Tensor], part: slice) -> Tensor:
    """Return a copy of a part of the numbers, fp32 (n)."""
    if "scales" not in tensors:
        return tensors["values"][part].to(torch.float32, copy=True)
    of_part = _blocks(part)
    codes = tensors["values"][of_part]
    numbers = torch.stack([codes & 15, codes >> 4], dim=2).view(-1, BLOCK).float().sub_(LARGEST + 1)
    return numbers.mul_(tensors["scales"][of_part][:, None]).view(-1)[: part.stop - part.start]


def _blocks(part: slice) -> slice:
    return slice(part.start // BLOCK, -(-part.stop // BLOCK))
