"""Logger with one line per event, and the rank in front if there are several."""

import logging
import re
import sys
import time

from dithc.core.logging.escaping import escaped


class _Line(logging.Formatter):
    """Formatter of escaped lines such as `12:03:41 train: message`, prefixed with `r3 |` on ranks other than 0."""

    def __init__(self, *, rank: int) -> None:
        super().__init__()
        self.prefix = f"r{rank} | " if rank else ""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        package = re.sub(r"^dithc\.(?:(?:core|engine)\.)?", "", record.name).split(".")[0]
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"{self.prefix}{clock} {package}: {level}{escaped(record.getMessage(), indent=2)}"
        return f"{text}\n{escaped(self.formatException(record.exc_info), indent=0)}" if record.exc_info else text


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, named by `__name__`."""
    return logging.getLogger(name)


def setup_logging(*, rank: int = 0, level: int = logging.INFO) -> None:
    """Send dithc's messages to standard error: from `level` on rank 0, from WARNING on other ranks.

    A later call, for example with the rank, replaces the earlier configuration.
    """
    root = logging.getLogger("dithc")
    root.handlers.clear()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(rank=rank))
    root.addHandler(handler)
    root.setLevel(level if rank == 0 else max(level, logging.WARNING))
    root.propagate = False
