"""What every file of the C back end needs: the library's functions and the pool of outputs."""

from functools import cache
from typing import Any

from dithc import native
from dithc.memory import Pool, hot_pool


def pool() -> Pool:
    """The pool that outputs of operators come from."""
    return hot_pool()


@cache
def functions() -> Any:
    """The library; the table offers this back end only where there is one."""
    handle = native.library()
    assert handle is not None, native.load().reason
    return handle
