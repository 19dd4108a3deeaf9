"""Where tensors lie in one flat buffer, and the buckets and shares that the buffer is cut into: pure arithmetic.

Legend: R ranks that share a bucket.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dithc import native

# Every tensor starts at a multiple of this many fp32 elements: a page, as the operators write gradients best.
ALIGNMENT = 1024
# A share is a multiple of this many fp32 elements, a cache line of 64 bytes: no two ranks' shares meet in one.
SHARE_ELEMENTS = 16
# A bucket is a 32nd of the buffer, within these bounds: small enough that the last one, which nothing hides, is little of the
# whole; large enough that the latency of a collective, some tens of microseconds, does not show.
BUCKETS = 32
LEAST_BUCKET_BYTES, MOST_BUCKET_BYTES = 1 << 20, 16 << 20


@dataclass(frozen=True)
class Bucket:
    """Elements start..stop of the buffer, which hold the tensors of these numbers; a multiple of R x 16 elements."""

    start: int
    stop: int
    members: tuple[int, ...]

    @property
    def megabytes(self) -> float:
        """Size of its numbers, fp32."""
        return (self.stop - self.start) * torch.float32.itemsize / 1e6

    def share(self, rank: int, ranks: int) -> slice:
        """The part of a rank, in elements of the buffer."""
        length = (self.stop - self.start) // ranks
        return slice(self.start + rank * length, self.start + (rank + 1) * length)


@dataclass(frozen=True)
class Arrangement:
    """Where everything is.

    Attributes:
        order: numbers of the tensors as they follow each other.
        starts: first element of each tensor, by its number.
        buckets: in the order of the buffer.
        length: of the buffer, in elements.
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    buckets: tuple[Bucket, ...]
    length: int

    def bucket_of(self, number: int) -> Bucket:
        """The one in which a tensor lies."""
        return next(bucket for bucket in self.buckets if number in bucket.members)


def arrange(
    sizes: Sequence[int], order: Sequence[int], *, ranks: int = 1, bucket_bytes: int | None = None
) -> Arrangement:
    """Lays tensors out one after the other and cuts them into buckets; a tensor lies in one bucket.

    Args:
        sizes: elements of each tensor, by number.
        order: all numbers, in the order of the buffer.
        ranks: R, into whose shares every bucket can be cut; 1 where nobody cuts it.
        bucket_bytes: the most of a bucket of several tensors, fp32; None for the rule above.
    """
    total = sum(_up(size, ALIGNMENT) for size in sizes) * torch.float32.itemsize
    limit = (
        bucket_bytes or min(max(total // BUCKETS, LEAST_BUCKET_BYTES), MOST_BUCKET_BYTES)
    ) // torch.float32.itemsize
    starts, begin, at = [0] * len(sizes), 0, 0
    buckets: list[Bucket] = []
    members: list[int] = []

    def close() -> int:
        stop = begin + _up(at - begin, ranks * SHARE_ELEMENTS)
        buckets.append(Bucket(begin, stop, tuple(members)))
        members.clear()
        return _up(stop, ALIGNMENT)

    for number in order:
        end = at + _up(sizes[number], ALIGNMENT)
        if members and end - begin > limit:
            begin = at = close()
        starts[number] = at
        at += _up(sizes[number], ALIGNMENT)
        members.append(number)
    length = close() if members else 0
    return Arrangement(tuple(order), tuple(starts), tuple(buckets), length)


def flat_buffer(elements: int) -> Tensor:
    """Zeros, fp32, on huge pages where the system grants them."""
    buffer = torch.zeros(elements)
    handle = native.library()
    if handle is not None and elements:
        handle.hc_use_huge_pages(buffer.data_ptr(), buffer.nbytes)
    return buffer


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
