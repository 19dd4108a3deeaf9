"""One thing made while the one before is worked on."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield items of an iterator in order while another thread makes the next; its exception replaces the item."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(_next, items)
        while found := following.result():
            following = pool.submit(_next, items)
            yield found.pop()


def _next(items: Iterator[Item]) -> list[Item]:
    """The next item alone, and nothing behind the last; a list, which lets go of what is taken out."""
    return list(islice(items, 1))
