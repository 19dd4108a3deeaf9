"""Partition of a range into consecutive parts of nearly equal size."""

from itertools import pairwise


def partition(length: int, parts: int, *, multiple: int = 1) -> list[slice]:
    """Split `range(length)` into `parts` consecutive slices.

    Sizes are multiples of `multiple` (for example a tile height) that differ by at most one multiple, larger ones
    first. Only the last nonempty part may be shorter, at the end of the range. With more parts than multiples the last
    parts are empty.

    Raises:
        ValueError: a negative length, or parts or multiple below one.
    """
    if length < 0 or parts < 1 or multiple < 1:
        raise ValueError(
            f"partition: got length={length}, parts={parts}, multiple={multiple}; "
            "expected length 0 or more, parts and multiple 1 or more; correct the caller"
        )
    units_each, units_extra = divmod(-(-length // multiple), parts)
    edges = [min((part * units_each + min(part, units_extra)) * multiple, length) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
