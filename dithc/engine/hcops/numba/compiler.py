"""Compilation and on-disk cache of the loops, and instructions that Numba lacks.

Loops are compiled without Numba's threads, because OpenMP, TBB or a work queue besides torch's pool would disturb it.
They release the GIL, and `threads` runs them on plain Python threads.

Arithmetic is fp32 and exactly as written. Only `multiply_add` fuses multiply-adds, so that vector and scalar parts of a
loop give the same bits. Only `helper(reorder=True)` lets the compiler split a sum over lanes, by its length alone.
"""

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core import config as numba_config
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from dithc.core import caches as places
from dithc.core.logging import get_logger

log = get_logger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
# An array of fp32, or of bf16 as its bits.
Array = NDArray[np.float32] | NDArray[np.uint16]
# Either of both, selected by a number at run time, if one compiled loop must support all types: (fp32 array, bf16 array,
# kind).
Either = tuple[NDArray[np.float32], NDArray[np.uint16], int]
FP32, ROUNDED, BF16 = 0, 1, 2  # ROUNDED: fp32 in memory, rounded to bf16 when read

# Objects without type annotations in Numba.
config = cast(Any, numba_config)
type_of = cast(Callable[[Any], Any], numba.typeof)
instruction = cast(Callable[[Callable[..., Any]], Callable[..., Any]], intrinsic)
declared = cast(Callable[[Any, Any, str], Any], cgutils.get_or_insert_function)

# All files with compiled functions.
SOURCES = ("compiler.py", "scalar.py", "loops.py", "matrix_loops.py", "heads.py")

FEATURES = binding.get_host_cpu_features()
# fp32 lanes of the widest vector of this processor.
LANES = 16 if FEATURES.get("avx512f") else 8 if FEATURES.get("avx") else 4
# Block of C in registers: 12 x 2 sums of the 32 registers of AVX-512, 6 x 2 of 16 for AVX2, 8 x 2 of 32 for Neon.
ROWS, VECTORS = {16: 12, 8: 6, 4: 8}[LANES], 2
COLUMNS = VECTORS * LANES
LINES = min(ROWS, LANES)  # rows of A that are transposed together; ROWS is a multiple
SIXTEEN, ONE, ODD_HALF, QUIET = np.uint32(16), np.uint32(1), np.uint32(0x7FFF), np.uint32(0x40)


class KernelEntry:
    """Loop that is compiled for the types of its arguments at first use. The log reports the seconds."""

    _lock = threading.RLock()
    _announced = False

    def __init__(self, function: Callable[..., None]) -> None:
        self.name = function.__name__
        self._compiled: set[tuple[str, ...]] = set()
        # Numba reads the folder when it decorates. Restore it afterwards for other users of Numba.
        previous, config.CACHE_DIR = config.CACHE_DIR, str(CACHE_FOLDER or "")
        try:
            decorate = numba.njit(nogil=True, error_model="numpy", cache=CACHE_FOLDER is not None)
            self._dispatcher = decorate(function)
        finally:
            config.CACHE_DIR = previous

    def prepare(self, *arguments: Any) -> None:
        """Compile for these arguments, or load the result of an earlier process, unless already done."""
        key = tuple(argument.dtype.char for argument in arguments if isinstance(argument, np.ndarray))
        if key not in self._compiled:
            with KernelEntry._lock:
                self._compile(arguments)
                self._compiled.add(key)

    def __call__(self, *arguments: Any) -> None:
        self._dispatcher(*arguments)

    def _compile(self, arguments: tuple[Any, ...]) -> None:
        if not KernelEntry._announced:
            KernelEntry._announced = True
            location = f"kept in {CACHE_FOLDER}" if CACHE_FOLDER else "again in each process: no folder to keep them in"
            log.info("Numba compiles operators at their first use, a second or two each, %s", location)
        misses, start = sum(self._dispatcher.stats.cache_misses.values()), time.perf_counter()
        try:
            self._dispatcher.compile(tuple(type_of(argument) for argument in arguments))
        except OSError as error:  # compiled, but the folder is full or was removed
            log.warning("compiled %s is not kept in %s: %s", self.name, CACHE_FOLDER, error)
        if sum(self._dispatcher.stats.cache_misses.values()) > misses:
            log.info("Numba compiled %s in %.1f s", self.name, time.perf_counter() - start)


def helper(reorder: bool = False) -> Callable[[Function], Function]:
    """Compile a function that kernels call. `reorder` allows splitting its sums over lanes; inf and nan stay exact."""
    flags = {"reassoc", "contract", "nsz"} if reorder else False
    return cast(Callable[[Function], Function], numba.njit(nogil=True, error_model="numpy", fastmath=flags))


def _cache_folder() -> Path | None:
    """Return the first writable folder for compiled loops, separate for each state of these sources, or None.

    Numba compares only the file that defines a loop, and would miss changes in functions of other files.
    """
    package = Path(__file__).parent
    digest = hashlib.sha256(b"".join((package / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    cache = places.cache_home()
    requested = os.environ.get("NUMBA_CACHE_DIR")
    errors = []
    for parent in [Path(requested)] if requested else [package / "__pycache__", *([cache / "dithc"] if cache else [])]:
        folder = parent / f"numba-{digest}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return folder
        except OSError as error:
            errors.append(str(error))
    log.warning("Numba's compiled operators are not kept: %s; set NUMBA_CACHE_DIR to a folder", "; ".join(errors))
    return None


CACHE_FOLDER = _cache_folder()


@instruction
def read(typing: Any, array: Any, index: Any) -> Any:
    """Return array[index] without the check for negative indices, which prevents vectorization."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], *values))

    return array.dtype(array, types.intp), emit


@instruction
def write(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Set array[index] = value without the check for negative indices."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[2], _address(context, builder, signature.args[0], values[0], values[1]))

    return types.void(array, types.intp, array.dtype), emit


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


@instruction
def multiply_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, fused where the processor can."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.call(_fused(builder, ir.FloatType()), values)

    return types.float32(types.float32, types.float32, types.float32), emit


@instruction
def maximum(typing: Any, a: Any, b: Any) -> Any:
    """Return the larger value, or nan if either is nan. Unlike a comparison, compilers can vectorize it."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        fp32 = ir.FloatType()
        return builder.call(declared(builder.module, ir.FunctionType(fp32, [fp32] * 2), "llvm.maximum.f32"), values)

    return types.float32(types.float32, types.float32), emit


def _fused(builder: Any, kind: Any) -> Any:
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
    return declared(builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fmuladd.{suffix}")


def _same_bits(source: Any, target: Any, kind: Any) -> Callable[..., Any]:
    def convert(typing: Any, value: Any) -> Any:
        """Return the value of type `target` with the bits of a value of type `source`."""

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.bitcast(values[0], kind)

        return target(source), emit

    return instruction(convert)


bits_of = _same_bits(types.float32, types.uint32, ir.IntType(32))
from_bits = _same_bits(types.uint32, types.float32, ir.FloatType())


@instruction
def add_outer_products(
    typing: Any, a: Any, a_start: Any, b: Any, b_start: Any, depth: Any, c: Any, c_start: Any, c_stride: Any
) -> Any:
    """Add to c[i * c_stride + j] the sum over d of a[d * ROWS + i] * b[d * COLUMNS + j], with C in registers."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), LANES)
        fused, index = _fused(builder, vector), ir.IntType(64)
        a, b, c = (_address(context, builder, signature.args[i], values[i], values[i + 1]) for i in (0, 2, 5))
        pointers = [
            builder.bitcast(
                builder.gep(c, [builder.add(builder.mul(values[7], index(i)), index(j * LANES))]), vector.as_pointer()
            )
            for i in range(ROWS)
            for j in range(VECTORS)
        ]
        first = [builder.load(pointer, align=4) for pointer in pointers]
        entry, loop, exit_block = builder.block, builder.append_basic_block("depth"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed(">", values[4], index(0)), loop, exit_block)

        builder.position_at_end(loop)
        d = builder.phi(index)
        sums = [builder.phi(vector) for _ in first]
        b_row = builder.gep(b, [builder.mul(d, index(COLUMNS))])
        a_row = builder.gep(a, [builder.mul(d, index(ROWS))])
        vectors = [
            builder.load(builder.bitcast(builder.gep(b_row, [index(j * LANES)]), vector.as_pointer()), align=4)
            for j in range(VECTORS)
        ]
        updated = []
        for i in range(ROWS):
            element = builder.insert_element(
                ir.Constant(vector, ir.Undefined), builder.load(builder.gep(a_row, [index(i)])), ir.IntType(32)(0)
            )
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            all_lanes = builder.shuffle_vector(element, ir.Constant(vector, ir.Undefined), lanes)
            updated += [builder.call(fused, [all_lanes, vectors[j], sums[i * VECTORS + j]]) for j in range(VECTORS)]
        next_d = builder.add(d, index(1))
        for phi, start, end in zip([d, *sums], [index(0), *first], [next_d, *updated], strict=True):
            phi.add_incoming(start, entry)
            phi.add_incoming(end, loop)
        builder.cbranch(builder.icmp_signed("<", next_d, values[4]), loop, exit_block)

        builder.position_at_end(exit_block)
        totals = [builder.phi(vector) for _ in pointers]  # the phis of a block must precede its stores
        for total, pointer, start, end in zip(totals, pointers, first, updated, strict=True):
            total.add_incoming(start, entry)
            total.add_incoming(end, loop)
            builder.store(total, pointer, align=4)

    return types.void(a, types.intp, b, types.intp, types.intp, c, types.intp, types.intp), emit


def _transposition(lines: int) -> Callable[..., Any]:
    def transpose(typing: Any, source: Any, start: Any, stride: Any, out: Any, out_start: Any, out_stride: Any) -> Any:
        """out[j * out_stride + i] = source[i * stride + j] as fp32, for `lines` i and LANES j, in registers."""

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            fp32, index = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)
            stored, half = context.get_value_type(signature.args[0].dtype), LANES // 2
            source, target = (_address(context, builder, signature.args[i], values[i], values[i + 1]) for i in (0, 3))
            rows = []
            for i in range(lines):
                pointer = builder.gep(source, [builder.mul(values[2], index(i))])
                row = builder.load(builder.bitcast(pointer, ir.VectorType(stored, LANES).as_pointer()), align=2)
                rows.append(_as_fp32(builder, row, fp32))
            rows += [ir.Constant(fp32, ir.Undefined)] * (LANES - lines)
            # Interleave row i with row i + half, log2(LANES) times. Each time the first bit of the row number becomes
            # the last bit of the column number, until both are exchanged.
            masks = [[k // 2 + first + k % 2 * LANES for k in range(LANES)] for first in (0, half)]
            for _ in range(LANES.bit_length() - 1):
                pairs = [(rows[i], rows[i + half], mask) for i in range(half) for mask in masks]
                rows = [builder.shuffle_vector(a, b, _integers(mask)) for a, b, mask in pairs]
            for j, row in enumerate(rows):
                cut = builder.shuffle_vector(row, row, _integers(range(lines)))
                pointer = builder.gep(target, [builder.mul(values[5], index(j))])
                builder.store(cut, builder.bitcast(pointer, cut.type.as_pointer()), align=4)

        return types.void(source, types.intp, types.intp, out, types.intp, types.intp), emit

    return instruction(transpose)


def _integers(numbers: Iterable[int]) -> Any:
    values = list(numbers)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(values)), values)


def _as_fp32(builder: Any, row: Any, fp32: Any) -> Any:
    if row.type == fp32:
        return row
    wide = ir.VectorType(ir.IntType(32), LANES)
    return builder.bitcast(builder.shl(builder.zext(row, wide), ir.Constant(wide, [16] * LANES)), fp32)


transpose_lines, transpose_lanes = _transposition(LINES), _transposition(LANES)


@helper()
def widened(bits: np.uint16) -> np.float32:
    """Convert bf16 to fp32; its bits are the upper half."""
    return from_bits(np.uint32(bits) << SIXTEEN)  # type: ignore[no-any-return]


@helper()
def narrowed(value: np.float32) -> np.uint16:
    """Round fp32 to bf16, to nearest even; nan stays nan."""
    bits: np.uint32 = bits_of(value)
    nearest = (bits + ODD_HALF + ((bits >> SIXTEEN) & ONE)) >> SIXTEEN
    return np.uint16((bits >> SIXTEEN) | QUIET if value != value else nearest)


def load(x: Array | Either, index: int) -> np.float32:
    """Return element `index` of an array of fp32 or bf16 as fp32, in compiled code."""
    raise NotImplementedError


def store(x: Array | Either, index: int, value: np.float32) -> None:
    """Write element `index` of an array of fp32 or bf16, in compiled code."""
    raise NotImplementedError


@overload(load)
def _load(x: Any, index: Any) -> Any:
    def fp32(x: Any, index: Any) -> Any:
        return read(x, index)

    def bf16(x: Any, index: Any) -> Any:
        return widened(read(x, index))

    def either(x: Any, index: Any) -> Any:
        if x[2] == BF16:
            return widened(read(x[1], index))
        if x[2] == ROUNDED:
            return widened(narrowed(read(x[0], index)))
        return read(x[0], index)

    return either if isinstance(x, types.BaseTuple) else bf16 if x.dtype == types.uint16 else fp32


@overload(store)
def _store(x: Any, index: Any, value: Any) -> Any:
    def fp32(x: Any, index: Any, value: Any) -> Any:
        write(x, index, value)

    def bf16(x: Any, index: Any, value: Any) -> Any:
        write(x, index, narrowed(value))

    def either(x: Any, index: Any, value: Any) -> Any:
        if x[2] == BF16:
            write(x[1], index, narrowed(value))
        else:
            write(x[0], index, value)

    return either if isinstance(x, types.BaseTuple) else bf16 if x.dtype == types.uint16 else fp32
