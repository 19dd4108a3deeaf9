"""Cases for kernels/test/run_cases.c: one call of an operator each, with float64's result and error bounds.

Tolerances follow from the unit roundoff of the arithmetic and of the stored type, the number of terms of a sum, and the
sizes of its terms (`Array.bound`, elementwise). None is an estimated relative error.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["f32", "bf16", "f64"]
Float = npt.NDArray[np.float64]

NUMBERS: dict[Kind, int] = {"f32": 0, "bf16": 1, "f64": 2}  # hc_dtype
ROUNDOFF: dict[Kind, float] = {"f32": 2.0**-24, "bf16": 2.0**-8, "f64": 2.0**-53}
SMALLEST: dict[Kind, float] = {"f32": 2.0**-149, "bf16": 2.0**-133, "f64": 5e-324}
STORAGE: dict[Kind, Any] = {"f32": np.float32, "bf16": np.uint16, "f64": np.float64}
MAGIC = b"HCCASES1"


def encode(values: npt.ArrayLike, kind: Kind) -> npt.NDArray[Any]:
    """Return stored values; bf16 as uint16, rounded to nearest even from fp32."""
    with np.errstate(over="ignore"):
        if kind != "bf16":
            return np.ascontiguousarray(values, STORAGE[kind])
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(bits.view(np.float32)), np.uint16(0x7FC0), rounded)


def decode(stored: npt.NDArray[Any], kind: Kind) -> Float:
    if kind == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


@dataclass
class Array:
    """Array argument: its content before the call and, for an output, the expected content after it.

    Attributes:
        stored: Content before the call, in the operator's type; None passes NULL.
        kind: Element type.
        expected: For an output: float64 values after the call.
        bound: For an output: largest allowed difference, elementwise, before rounding to `kind`; 0 if it is exact.
    """

    stored: npt.NDArray[Any] | None
    kind: Kind = "f32"
    expected: Float | None = None
    bound: Float | None = None

    @property
    def values(self) -> Float:
        assert self.stored is not None
        return decode(self.stored, self.kind)


@dataclass
class Case:
    op: str
    ints: Sequence[int]
    arrays: Sequence[Array]
    floats: Sequence[float] = ()
    status: int = 0
    label: str = field(default="")

    @property
    def name(self) -> str:
        kinds = "/".join(array.kind for array in self.arrays if array.stored is not None)
        return f"{self.op}{tuple(self.ints)} {kinds} {self.label}"


def input_array(values: npt.ArrayLike, kind: Kind) -> Array:
    return Array(encode(values, kind), kind)


def no_array(kind: Kind = "f32") -> Array:
    return Array(None, kind)


def output(expected: npt.ArrayLike, bound: npt.ArrayLike, kind: Kind, before: npt.ArrayLike | None = None) -> Array:
    """Return an output that contains nan before the call, unless `before` is given, so that unwritten elements are
    detected.
    """
    exact = np.asarray(expected, np.float64)
    first = np.full(exact.shape, np.nan) if before is None else np.broadcast_to(np.asarray(before), exact.shape)
    return Array(encode(first, kind), kind, exact, np.broadcast_to(np.asarray(bound, np.float64), exact.shape))


def write_cases(cases: Sequence[Case], path: Path) -> None:
    parts = [MAGIC, struct.pack("<q", len(cases))]
    for case in cases:
        parts.append(case.op.encode().ljust(32, b"\0"))
        parts.append(struct.pack("<3q", len(case.ints), len(case.floats), len(case.arrays)))
        parts.append(struct.pack(f"<{len(case.ints)}q{len(case.floats)}d", *case.ints, *case.floats))
        for array in case.arrays:
            count = -1 if array.stored is None else array.stored.size
            parts.append(struct.pack("<3q", NUMBERS[array.kind], count, array.expected is not None))
            if array.stored is not None:
                parts.append(padded(array.stored.tobytes()))
    path.write_bytes(b"".join(parts))


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)


BROKEN = (
    "memory before an output",
    "an input",
    "callee-saved registers",
    "rounding control",
    "matrix unit left on",
    "a dormant ZA",
)


def read_outputs(cases: Sequence[Case], data: bytes) -> list[str]:
    """Return all errors in the outputs of a run, one line each."""
    found: list[str] = []
    position = 0
    for case in cases:
        status, broken = struct.unpack_from("<2q", data, position)
        position += 16
        if status != case.status:
            found.append(f"{case.name}: status {status}, expected {case.status}")
        found += [f"{case.name}: broke {cause}" for bit, cause in enumerate(BROKEN) if broken >> bit & 1]
        for number, array in enumerate(case.arrays):
            if array.stored is None or array.expected is None:
                continue
            got = np.frombuffer(data, STORAGE[array.kind], array.stored.size, position)
            position += len(padded(got.tobytes()))
            if case.status == 0:
                found += differences(case, number, array, decode(got, array.kind).reshape(array.expected.shape))
            elif got.tobytes() != array.stored.tobytes():
                found.append(f"{case.name}: refused, but array {number} was written")
    assert position == len(data), "run_cases wrote another number of bytes"
    return found


def differences(case: Case, number: int, array: Array, got: Float) -> list[str]:
    assert array.expected is not None
    assert array.bound is not None
    expected = decode(encode(array.expected, array.kind), array.kind)  # including overflow to inf
    with np.errstate(invalid="ignore", over="ignore"):
        rounding = np.where(array.bound == 0, 0, 1) * (
            2 * ROUNDOFF[array.kind] * np.abs(expected) + SMALLEST[array.kind]
        )
        outside = ~(
            (np.abs(got - expected) <= array.bound + rounding)
            | (got == expected)
            | (np.isnan(got) & np.isnan(expected))
        )
    if not outside.any():
        return []
    index = tuple(np.argwhere(outside)[0].tolist())
    return [
        f"{case.name}: array {number} at {index}: got {got[index]!r}, expected {expected[index]!r}, "
        f"bound {array.bound[index]:.3g}; {int(outside.sum())} of {outside.size} are off"
    ]
