"""The C library of kernels: found, checked and loaded; its functions declared; its threads and scratch memory held.

What: `load` and `library` (the loaded library, or why there is none), `isa` and `kernels` (what serves this CPU), `context` (the
handle that every operator of the library takes), and the structures that its functions read.
Why: a wrong declaration of a C function is a crash without a message, so each one stands in one file, beside a test that
compares it with the header.
Invariants:
- A function of the library that reports a status raises: MemoryError where memory was refused, ValueError naming the
  function for the rest. No caller reads a status.
- A missing, broken or outdated library is a logged reason, never an error: other back ends take over.
- The threads of a context belong to the library and have nothing to do with torch's OpenMP pool; they sleep while no
  kernel runs. A context lives until the process ends.
How to change it: a new function of `kernels/include/hcops.h` is a line of `signatures.py`; a change of one also raises
HC_ABI_VERSION there and ABI_VERSION in `loading.py`. `context`, which needs torch, is loaded on first use: who prepares pictures
needs the library alone.
"""

from typing import TYPE_CHECKING

from dithc.native.loading import ISA_VARIABLE, isa, kernels, library, load
from dithc.native.signatures import AdamwSettings, GemmArguments

if TYPE_CHECKING:
    from dithc.native.contexts import context

__all__ = [
    "ISA_VARIABLE",
    "AdamwSettings",
    "GemmArguments",
    "context",
    "isa",
    "kernels",
    "library",
    "load",
]


def __getattr__(name: str) -> object:
    """Loads `context` on first use."""
    if name != "context":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dithc.native.contexts import context as found

    globals()[name] = found
    return found
