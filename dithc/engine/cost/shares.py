"""Shares of the global batch in proportion to the speeds of the ranks."""

import heapq
from collections.abc import Sequence


def balanced_shares(images: Sequence[int], seconds: Sequence[float]) -> list[int]:
    """Divide the same number of images among ranks so that all need the same time.

    Args:
        images: images of each rank now, at least one.
        seconds: time of each rank for them.
    """
    pace = [float(value) / count for value, count in zip(seconds, images, strict=True)]  # seconds per image
    ends = [(2 * value, rank) for rank, value in enumerate(pace)]  # after one image more than the rank has
    shares = [1] * len(images)
    heapq.heapify(ends)
    for _ in range(sum(images) - len(images)):
        end, rank = heapq.heappop(ends)
        shares[rank] += 1
        heapq.heappush(ends, (end + pace[rank], rank))
    return shares
