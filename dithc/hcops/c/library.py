"""What every file of the C back end needs: the library's functions, at once or in sequence, and the pool of outputs."""

import threading
from functools import cache
from types import TracebackType
from typing import Any

from dithc import native
from dithc.memory import Pool, hot_pool
from dithc.native import sequences


def pool() -> Pool:
    """The pool that outputs of operators come from."""
    return hot_pool()


class _Recording(threading.local):
    now: sequences.Sequence | None = None


_recording = _Recording()


def functions() -> Any:
    """The library, or in the body of a `sequence` what records calls of it."""
    return _recording.now or _handle()


class sequence:  # reads as a verb at the place of use
    """Has the C kernels that are called in the body of a `with` run at its end, as one call.

    In the body nothing reads what they write, and every tensor that they were given or made stays in a variable: memory of one
    that is gone may be somebody else's by the time that they run. If the body fails none of them runs.
    """

    def __enter__(self) -> None:
        assert _recording.now is None, "a sequence within a sequence"
        _recording.now = sequences.Sequence(_handle())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorded, _recording.now = _recording.now, None
        if kind is None and recorded is not None:
            recorded.run()


def run_recorded() -> None:
    """Runs what was recorded so far, if anything: before torch reads or writes what kernels do."""
    if _recording.now is not None:
        _recording.now.run()


@cache
def _handle() -> Any:
    """The library; the table offers this back end only where there is one."""
    handle = native.library()
    assert handle is not None, native.load().reason
    return handle
