"""Child process of a benchmark that ends with the benchmark."""

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child_of(line: Sequence[str], **settings: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a command and end it when the block exits.

    An error, Ctrl-C or SIGTERM (raised as SystemExit 143 inside the block) sends SIGTERM, which `dithc launch`
    forwards.

    Args:
        line: command and arguments.
        **settings: arguments of subprocess.Popen.
    """
    is_main = threading.current_thread() is threading.main_thread()  # other threads must not set handlers
    previous = signal.signal(signal.SIGTERM, _leave) if is_main else None
    try:
        with subprocess.Popen(line, stdin=subprocess.DEVNULL, **settings) as child:
            try:
                yield child
            except BaseException:
                child.terminate()
                raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, previous)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)
