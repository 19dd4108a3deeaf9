"""Random calls of every function of the C API: wrong handles, NULL pointers, negative or excessive sizes.

Conditions that a C function cannot check always hold: addresses are NULL or point to enough memory, and lists have the
given length. A test runs this module in a separate process, because a failure may be a crash: `python -m
tests.attack.c_api SEED CALLS`.
"""

import ctypes
import faulthandler
import random
import re
import sys
from collections.abc import Callable
from ctypes import c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

from dithc.engine.native import signatures
from dithc.engine.native.loading import LIBRARY

HEADER = Path(__file__).parents[2] / "kernels/include/hcops.h"
FUNCTIONS = {
    name: (result.strip(), [declaration for declaration in re.split(r",\s*", arguments) if declaration != "void"])
    for result, name, arguments in re.findall(
        r"^([a-z][\w \*]*?)\b(hc_\w+)\(([^)]*)\);",
        re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL),
        flags=re.MULTILINE,
    )
}
HANDLES = ("hc_context", "hc_pool", "hc_copies", "hc_exchange")
# These functions end or close a handle: each call gets a separate handle.
ENDING = ("_destroy", "_close", "_release", "_detach")
LEAST, MOST = -(2**63), 2**63 - 1
SIZES = (LEAST, -1, 0, 0, 1, 1, 2, 3, 5, 5, 2**62, MOST)
SMALL_SIZES = (LEAST, -1, 0, 1, 3)  # sizes of lists, rounds and nanoseconds
SMALL_ARGUMENTS = ("timeout", "rounds", "tensors", "num_words", "after_", "delay_")
INTS = (-(2**31), -1, 0, 0, 0, 1, 1, 2, 3, 7, 2**31 - 1)
NOT_CHECKED = ("stride", "timeout_nanoseconds", "rounds", "budget_bytes", "spin_nanoseconds")
BUFFER_BYTES, BUFFERS, CANARY = 1 << 20, 32, b"\xa5" * 4096


class Pieces(ctypes.Structure):
    _fields_ = [("offsets", ctypes.POINTER(c_int64)), ("length", c_int64), ("limit", c_int64)]


class Collective(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "out")),
        ("done", ctypes.POINTER(c_int64)),
        *((name, c_int64) for name in ("count", "chunk")),
        ("first", ctypes.c_uint32),
        *((name, c_int) for name in ("kind", "x_type", "type", "op")),
        ("scale", c_float),
    ]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "hc_machine": signatures.Machine,
    "hc_pool_options": signatures.PoolOptions,
    "hc_pool_state": signatures.PoolState,
    "hc_copy_request": signatures.CopyRequest,
    "hc_copy_counters": signatures.CopyCounters,
    "hc_gemm_arguments": signatures.GemmArguments,
    "hc_adamw_settings": signatures.AdamwSettings,
    "hc_pieces": Pieces,
    "hc_collective": Collective,
}


class Attack:
    """A run: a library, handles of every type, buffers with canaries on both sides, and seeded calls."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.library = ctypes.CDLL(str(LIBRARY))
        self.memory: list[Any] = []  # memory that the library may still write to
        self.is_invalid = False  # the call has an argument that must be rejected
        self.plain = ctypes.create_string_buffer(bytes(self.random.randrange(256) for _ in range(4096)), 4096)
        self.buffers = [ctypes.create_string_buffer(BUFFER_BYTES + 2 * len(CANARY)) for _ in range(BUFFERS)]
        for buffer in self.buffers:
            ctypes.memmove(buffer, CANARY, len(CANARY))
            ctypes.memmove(ctypes.addressof(buffer) + len(CANARY) + BUFFER_BYTES, CANARY, len(CANARY))
        self.segment = ctypes.create_string_buffer(1 << 20)
        self.job = signatures.Callback(lambda arguments, thread, num_threads: None)
        self.handles: dict[str, int] = {}
        for kind in HANDLES:
            self.handles[kind] = self.new(kind)

    def new(self, kind: str) -> int:
        made = c_void_p()
        if kind == "hc_context":
            machine = signatures.Machine(0, 2, None, 0, 0, 0, 1, 1, None)
            status = self.library.hc_context_create(ctypes.byref(machine), ctypes.byref(made))
        elif kind == "hc_pool":
            options = signatures.PoolOptions(32 << 20, None, None, 0, -1, 0)
            status = self.library.hc_pool_create(ctypes.byref(options), ctypes.byref(made))
        elif kind == "hc_copies":
            status = self.library.hc_copies_create(c_void_p(self.handles["hc_context"]), 1, None, ctypes.byref(made))
        else:
            aligned = (ctypes.addressof(self.segment) + 4095) // 4096 * 4096
            status = self.library.hc_exchange_attach(
                *(c_void_p(aligned), c_void_p(self.handles["hc_context"]), 0, 1, 2, c_int64(4096), ctypes.byref(made))
            )
        assert status == 0, (kind, status)
        assert made.value is not None
        return made.value

    def handle(self, kind: str, function: str) -> int | None:
        """Return a handle, usually of the required type; else none, another type, an invalid or a shifted handle."""
        if self.random.random() < 0.6:
            return self.new(kind) if function.endswith(ENDING) and function.startswith(kind) else self.handles[kind]
        self.is_invalid = True
        others = [handle for name, handle in self.handles.items() if name != kind]
        return self.random.choice([None, *others, ctypes.addressof(self.plain), self.handles[kind] + 1])

    def address(self, place: int) -> int | None:
        if self.random.random() < 0.1:
            return None
        return ctypes.addressof(self.buffers[place % BUFFERS]) + len(CANARY) + BUFFER_BYTES // 2

    def size(self, function: str, name: str) -> int:
        if name.startswith(SMALL_ARGUMENTS) or function == "hc_barrier_ceiling":
            drawn = self.random.choice(SMALL_SIZES)
        elif function == "hc_copy" or name == "bytes":  # within the existing memory
            drawn = self.random.choice([LEAST, -1, 0, 1, 4096, 65536])
        elif name in ("slot_bytes", "multiple"):
            drawn = self.random.choice([*SIZES, 64, 4096])
        else:
            drawn = self.random.choice(SIZES)
        if drawn < 0 and not any(part in name for part in NOT_CHECKED):
            self.is_invalid = True
        return drawn

    def argument(self, function: str, declaration: str, place: int) -> Any:
        kind, name = re.fullmatch(r"(.*?[ *])(\w+)", declaration).groups()  # type: ignore[union-attr]
        kind = kind.replace("const ", "").strip()
        if kind.endswith("*") and kind[:-1].strip() in HANDLES:
            return c_void_p(self.handle(kind[:-1].strip(), function))
        if kind == "int64_t":
            return c_int64(self.size(function, name))
        if kind == "uint32_t":
            return ctypes.c_uint32(self.random.choice([0, 1, 2, 2**32 - 1]))
        if kind in ("float", "double"):
            of = c_float if kind == "float" else c_double
            return of(self.random.choice([0.0, 1.0, -1.0, 1e-5, float("inf"), float("nan")]))
        if kind == "hc_callback":
            return self.job if self.random.random() < 0.9 else signatures.Callback()
        if kind.endswith("*") and kind[:-1].strip() in STRUCTURES:
            return self.structure(STRUCTURES[kind[:-1].strip()], function)
        if kind == "int64_t *" and name == "words":
            return self.steps()
        return self.pointer(function, kind, name, place) if kind.endswith("*") else c_int(self.random.choice(INTS))

    def pointer(self, function: str, kind: str, name: str, place: int) -> Any:
        if function == "hc_pool_give" and name == "block" and self.random.random() < 0.5:
            return c_void_p(self.pool_block())
        if kind == "char *":
            return c_char_p(self.random.choice([None, b"", b"ref", b"nonsense", b"\xff" * 99]))
        made: Any
        if kind.endswith(("**", "*const *")):
            made = (c_void_p * 64)(*[self.address(place + i) for i in range(64)])
        elif kind == "int64_t *" and not name.startswith("out_"):
            made = (c_int64 * 64)(*self.random.choices([0, 1, 2, 5, 5, 5, -1, MOST], k=64))
        elif kind == "int *" and not name.startswith("out_"):
            made = (c_int * 64)(*self.random.choices([-1, 0, 1, 2**31 - 1], k=64))
        else:
            return c_void_p(self.address(place))
        self.memory.append(made)
        return made if self.random.random() < 0.9 else None

    def pool_block(self) -> int | None:
        """Return a block of the pool, or None if the pool is exhausted."""
        self.library.hc_pool_take.restype = c_void_p
        owners = (c_void_p(self.handles[kind]) for kind in ("hc_pool", "hc_context"))
        return self.library.hc_pool_take(*owners, c_int64(100_000)) or None

    def structure(self, kind: type[ctypes.Structure], function: str) -> Any:
        if self.random.random() < 0.1:
            return None
        made = kind()
        for place, field in enumerate(kind._fields_):
            name, of = field[0], field[1]
            if of is c_void_p:
                is_pool = kind is signatures.PoolOptions
                setattr(made, name, self.next_pool(function) if is_pool else self.address(place))
            elif of is c_int64:
                setattr(made, name, self.random.choice(SIZES))
                if "stride" in name:
                    setattr(made, name, self.random.choice([0, 1, 1, 1, 5, 8, -1, LEAST, MOST]))
                if kind is signatures.CopyRequest:
                    setattr(made, name, self.random.choice([LEAST, -1, 0, 1, 4096]))
            elif of in (c_int, ctypes.c_uint32):
                small = name in ("source_file", "target_file", "file")
                setattr(made, name, -1 if small else self.random.choice(INTS) % (2**32 if of is not c_int else 2**33))
            elif of in (c_float, c_double):
                setattr(made, name, self.random.choice([0.0, 1.0, -1.0, 0.9, float("inf"), float("nan")]))
            elif of is ctypes.POINTER(c_int64):
                numbers = (c_int64 * 256)(*self.random.choices([0, 0, 1, 2], k=256))
                self.memory.append(numbers)
                setattr(made, name, numbers if self.random.random() < 0.9 else None)
        self.memory.append(made)
        return ctypes.byref(made)

    def next_pool(self, function: str) -> int | None:
        """Return the next lower pool: usually none, which is valid."""
        was_wrong = self.is_invalid
        drawn = self.handle("hc_pool", function) if self.random.random() < 0.3 else None
        self.is_invalid = was_wrong if drawn is None else self.is_invalid
        return drawn

    def steps(self) -> Any:
        """Return words of a sequence: valid step numbers with arguments of their functions, or invalid numbers."""
        sequence: list[int] = []
        for _ in range(8):
            was_invalid = self.is_invalid
            step = self.random.choice([1, 2, 3, 4, 5, 6, 7])
            name = f"hc_{STEP_NAMES[step]}"
            drawn = [self.argument(name, of, i) for i, of in enumerate(FUNCTIONS[name][1][1:], start=1)]
            self.is_invalid = was_invalid  # a failing step ends the sequence, which may be shorter
            sequence += [step, *map(step_word, drawn)]
        sequence += [self.random.choice([LEAST, -1, 8, MOST])] * 64
        made = (c_int64 * len(sequence))(*sequence)
        self.memory.append(made)
        return made

    def call(self, name: str, log: Callable[[str], None]) -> None:
        """Call a function; errors must be rejected, and memory outside the buffers must stay unchanged."""
        self.is_invalid = False
        result, declared = FUNCTIONS[name]
        drawn = [self.argument(name, declaration, place) for place, declaration in enumerate(declared)]
        log(f"{name}({', '.join(str(getattr(value, 'value', value)) for value in drawn)}) wrong={self.is_invalid}\n")
        function = self.library[name]
        function.restype = {"int": c_int, "void": None}.get(result, c_void_p)
        returned = function(*drawn)
        if self.is_invalid and result == "int":
            refusals = (0,) if name == "hc_pool_holds" else range(-10, 0)
            assert returned in refusals, f"{name} accepted it: {returned}"
        if self.is_invalid and result.endswith("*"):
            assert returned is None, f"{name} accepted it"
        for handle in HANDLES:
            assert ctypes.string_at(self.handles[handle], 8) == self.tags[handle], f"{name} ended a handle of the test"

    def check_canaries(self) -> None:
        for buffer in self.buffers:
            assert ctypes.string_at(buffer, len(CANARY)) == CANARY
            assert ctypes.string_at(ctypes.addressof(buffer) + len(CANARY) + BUFFER_BYTES, len(CANARY)) == CANARY

    def run(self, calls: int, log: Callable[[str], None]) -> None:
        self.tags = {kind: ctypes.string_at(handle, 8) for kind, handle in self.handles.items()}
        names = sorted(FUNCTIONS)
        for number in range(calls):
            self.call(names[number % len(names)], log)
            self.check_canaries()


def step_word(value: Any) -> int:
    if isinstance(value, c_float):
        return int.from_bytes(bytes(c_double(value.value)), "little", signed=True)
    return int(value.value or 0)


STEP_NAMES = [name.lower() for name in re.findall(r"HC_STEP_(\w+) = \d", HEADER.read_text())]


if __name__ == "__main__":
    faulthandler.enable()
    Attack(int(sys.argv[1])).run(int(sys.argv[2]), lambda line: print(line, end="", flush=True))
    print("done", flush=True)
