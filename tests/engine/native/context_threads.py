"""Python functions on the threads of a context."""

from collections.abc import Callable
from typing import Any

from dithc.engine import native
from dithc.engine.native.signatures import Callback


def run_on_threads(function: Callable[[int, int], Any], *, num_threads: int | None = None) -> None:
    """Call `function(thread, threads)` on every thread of the context; return after all calls."""
    context = native.context(num_threads=num_threads)
    native.library().hc_run(context, Callback(lambda _, thread, threads: function(thread, threads) and None), None)
