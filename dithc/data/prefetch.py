"""Prefetching of one item of an iterator in another thread."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield items of an iterator in order while another thread computes the next; an exception replaces its item."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(_next, items)
        while buffer := following.result():
            following = pool.submit(_next, items)
            yield buffer.pop()


def _next(items: Iterator[Item]) -> list[Item]:
    """Return the next item in a list, empty at the end. Popping the list releases the item."""
    return list(islice(items, 1))
