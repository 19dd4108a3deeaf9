"""Layout of tensors in a flat buffer, and its partition into buckets and shares: pure arithmetic.

R is the number of ranks that share a bucket.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dithc.engine import native

# Every tensor starts at a multiple of this number of fp32 elements: one page, the fastest alignment for gradient
# writes.
ALIGNMENT = 1024
# A share is a multiple of this number of fp32 elements, a cache line of 64 bytes, so that no cache line holds two
# shares.
SHARE_ELEMENTS = 16
# A bucket is 1/32 of the buffer, within these bounds. The exposed last bucket is then a small part of the buffer, and
# the latency of a collective, some tens of microseconds, is negligible.
BUCKETS = 32
MIN_BUCKET_BYTES, MAX_BUCKET_BYTES = 1 << 20, 16 << 20


@dataclass(frozen=True)
class Bucket:
    """Elements start..stop of the buffer, with the numbers of their tensors; a multiple of R x 16 elements."""

    start: int
    stop: int
    members: tuple[int, ...]

    @property
    def megabytes(self) -> float:  # of fp32
        return (self.stop - self.start) * torch.float32.itemsize / 1e6

    def share(self, rank: int, ranks: int) -> slice:
        """Return the share of a rank, in elements of the buffer."""
        length = (self.stop - self.start) // ranks
        return slice(self.start + rank * length, self.start + (rank + 1) * length)


@dataclass(frozen=True)
class BucketLayout:
    """Layout of a flat buffer of `length` elements."""

    order: tuple[int, ...]  # numbers of the tensors
    starts: tuple[int, ...]  # first element of each tensor, by number
    buckets: tuple[Bucket, ...]
    length: int

    def bucket_of(self, number: int) -> Bucket:
        return next(bucket for bucket in self.buckets if number in bucket.members)


def arrange(
    sizes: Sequence[int], order: Sequence[int], *, ranks: int = 1, bucket_bytes: int | None = None
) -> BucketLayout:
    """Lay out tensors one after the other and partition them into buckets; no tensor spans two buckets.

    Args:
        sizes: elements of each tensor, by number.
        order: all tensor numbers, in buffer order.
        ranks: R, the number of shares per bucket; 1 without shares.
        bucket_bytes: maximum size of a bucket of several tensors, fp32; None for the rule above.
    """
    total = sum(_round_up(size, ALIGNMENT) for size in sizes) * torch.float32.itemsize
    most_bytes = bucket_bytes or min(max(total // BUCKETS, MIN_BUCKET_BYTES), MAX_BUCKET_BYTES)
    limit = most_bytes // torch.float32.itemsize
    starts, start, position = [0] * len(sizes), 0, 0
    buckets: list[Bucket] = []
    members: list[int] = []

    def close() -> int:
        stop = start + _round_up(position - start, ranks * SHARE_ELEMENTS)
        buckets.append(Bucket(start, stop, tuple(members)))
        members.clear()
        return _round_up(stop, ALIGNMENT)

    for number in order:
        end = position + _round_up(sizes[number], ALIGNMENT)
        if members and end - start > limit:
            start = position = close()
        starts[number] = position
        position += _round_up(sizes[number], ALIGNMENT)
        members.append(number)
    length = close() if members else 0
    return BucketLayout(tuple(order), tuple(starts), tuple(buckets), length)


def flat_buffer(elements: int) -> Tensor:
    """Return fp32 zeros, on huge pages if the system grants them."""
    buffer = torch.zeros(elements)
    handle = native.library()
    if handle is not None and elements:
        handle.hc_use_huge_pages(buffer.data_ptr(), buffer.nbytes)
    return buffer


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
