"""What every file of the C back end needs: the library's functions and the pool of outputs."""

from functools import cache
from typing import Any

from dithc import native
from dithc.memory import Pool


@cache
def pool() -> Pool:
    """The process's pool for outputs of operators."""
    return Pool()


@cache
def functions() -> Any:
    """The library; the table offers this back end only where there is one."""
    handle = native.library()
    assert handle is not None, native.load().reason
    return handle
