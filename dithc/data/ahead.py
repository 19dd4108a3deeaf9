"""One thing made while the one before is worked on."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """What an iterator gives, in its order; another thread makes the next meanwhile, so that two are in memory.

    Raises:
        Exception: what the iterator raised, where its item was due.
    """
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(_next, items)
        while found := following.result():
            following = pool.submit(_next, items)
            yield found.pop()


def _next(items: Iterator[Item]) -> list[Item]:
    """The next item alone, and nothing behind the last; a list, which lets go of what is taken out."""
    return list(islice(items, 1))
