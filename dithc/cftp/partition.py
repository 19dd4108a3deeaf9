"""Cuts a range into consecutive parts as equal as can be."""

from itertools import pairwise


def partition(length: int, parts: int, *, multiple: int = 1) -> list[slice]:
    """Cuts `range(length)` into `parts` consecutive slices.

    Sizes are whole multiples of `multiple` (a tile height, say) that differ by at most one multiple, larger ones first;
    only the last part that is not empty may be cut short by the end of the range. With more parts than multiples the
    last parts are empty.

    Raises:
        ValueError: a negative length, or parts or multiple below one.
    """
    if length < 0 or parts < 1 or multiple < 1:
        raise ValueError(
            f"partition: got length={length}, parts={parts}, multiple={multiple}; "
            "expected length 0 or more and the others 1 or more; correct the caller"
        )
    units_each, units_extra = divmod(-(-length // multiple), parts)
    edges = [min((part * units_each + min(part, units_extra)) * multiple, length) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def partition_two_level(length: int, clusters: int, cores: int, *, multiple: int = 1) -> list[list[slice]]:
    """Cuts `range(length)` among clusters, then each cluster's part among its cores; slices are of the whole range."""
    return [
        [
            slice(part.start + inner.start, part.start + inner.stop)
            for inner in partition(part.stop - part.start, cores, multiple=multiple)
        ]
        for part in partition(length, clusters, multiple=multiple)
    ]
