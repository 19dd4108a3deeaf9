"""Detection of memory refusals by the system, and their error message."""

import errno
import re

from dithc.core.logging.errors import UserError, user_error
from dithc.core.units import format_bytes

REFUSALS = re.compile(
    r"(can't|cannot|unable to) (allocate|map)|not enough memory|out of memory|bad_alloc|can't start new thread|"
    r"failed to map segment|cannot create shared object descriptor|MemoryError|launch worker thread|"
    r"thread, or its place on a CPU, that the system refused",
    re.IGNORECASE,
)
SIZES = re.compile(r"allocate (\d+) bytes|Unable to allocate ([\d.]+ [KMGTPE]?i?B)|no memory for (\([^)]*\) of [\w.]+)")


def requested_memory(error: BaseException) -> str | None:
    """Return the refused request if an error is a memory refusal; None for every other error."""
    text = (str(error).splitlines() or [""])[0]
    is_refusal = (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or REFUSALS.search(str(error))
    )
    if not is_refusal:
        return None
    if match := SIZES.search(str(error)):
        return match[2] or (f"a tensor {match[3]}" if match[3] else format_bytes(int(match[1])))
    return text or "memory"


def out_of_memory(title: str, *, requested: str, available: str, fix: str) -> UserError:
    """Build the error of a memory refusal, with the result of `requested_memory` and the memory that the process may use."""
    return user_error(
        f"{title}: out of memory", got=f"allocation refused by the system: {requested}", expected=available, fix=fix
    )
