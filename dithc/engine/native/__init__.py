"""C library of kernels: loading, checks, function declarations, threads and scratch memory.

Purpose: a wrong declaration of a C function is a crash without a message. All declarations are in one file, and a test
compares them with the header.
Contents: `load_library` and `library` return the loaded library or the reason for its absence. `instruction_set` and `kernels`
list the kernels of this CPU. `context` returns the handle that every operator of the library needs.
Invariants:
- A function of the library that returns a status raises MemoryError or ValueError with its name.
- A missing, broken or outdated library is a logged reason, not an error, because other back ends take over.
- The threads of a context belong to the library. They sleep while no kernel runs. A context lives until process exit.
Extending: a new function of `kernels/include/hcops.h` needs a line in `signatures.py`. A changed function also needs a
new HC_ABI_VERSION there and ABI_VERSION in `loading.py`.
"""

from dithc.engine.native.contexts import context
from dithc.engine.native.instruction_sets import instruction_set, isa_choice, kernels
from dithc.engine.native.loading import ISA_VARIABLE, library, load_library, loaded
from dithc.engine.native.signatures import AdamwSettings, GemmArguments

__all__ = [
    "ISA_VARIABLE",
    "AdamwSettings",
    "GemmArguments",
    "context",
    "instruction_set",
    "isa_choice",
    "kernels",
    "library",
    "load_library",
    "loaded",
]
