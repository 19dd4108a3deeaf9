"""Threads of a context for Python functions, and the cost of their barrier."""

from collections.abc import Callable

from dithc.native.contexts import context
from dithc.native.loading import library
from dithc.native.signatures import Callback


def run(function: Callable[[int, int], object], *, num_threads: int | None = None) -> None:
    """Call `function(thread, threads)` on every thread of the context; return after all calls.

    Operators that the function calls run on the calling thread alone. Only code that releases the GIL runs in parallel.

    Raises:
        BaseException: Error of the failed thread with the lowest number, with a note that names the thread. The other
            calls were finished.
    """
    handle = library()
    assert handle is not None, "a team needs the library"
    failures: dict[int, BaseException] = {}
    finished: set[int] = set()

    def job(_: object, thread: int, threads: int) -> None:
        try:
            function(thread, threads)
        except BaseException as error:
            error.add_note(f"raised on thread {thread} of a team of {threads}")
            failures[thread] = error
        finished.add(thread)

    handle.hc_run(context(num_threads=num_threads), Callback(job), None)
    if failures:
        first = min(failures)
        others = sorted(failures.keys() - {first})
        if others:
            failures[first].add_note(f"threads {others} failed too")
        raise failures[first]
    if 0 not in finished:  # ctypes drops exceptions raised between the call and its first line
        raise KeyboardInterrupt


def barriers(count: int, *, num_threads: int | None = None) -> None:
    """Run `count` barriers of all threads of the context, back to back."""
    handle = library()
    assert handle is not None, "a barrier needs the library"
    handle.hc_barrier_ceiling(context(num_threads=num_threads), count)
