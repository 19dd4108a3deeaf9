"""ctypes declarations of every function and structure of kernels/include/hcops.h."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_uint32, c_void_p
from typing import Any

# Values of hc_status with separate exceptions.
OK, OUT_OF_MEMORY, PROCESS_GONE, TIMED_OUT, PROCESS_STOPPED = 0, -5, -8, -9, -11
STATUS_TEXTS = {
    -1: "an argument that it does not take: a null pointer, another handle, a negative size, or a type",
    -2: "an instruction set that does not exist",
    -3: "an instruction set that this CPU lacks",
    -4: "an index past the end of a table",
    OUT_OF_MEMORY: "memory that the system refused",
    -6: "a thread, or its place on a CPU, that the system refused",
    -7: "memory on a node that the system refused to bind it to",
    PROCESS_GONE: "a process that was waited for has ended",
    TIMED_OUT: "a process that was waited for has not come in time",
    PROCESS_STOPPED: "a process that was waited for is stopped by a signal",
    -10: "a closed engine, or an engine with threads in the parent process only",
}


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Return the fields of a structure from types, each with the names of consecutive fields."""
    return [(name, kind) for kind, names in groups for name in names.split()]


# Structures of hcops.h have its names.
class OpenMP(Structure):
    _fields_ = [("parallel", c_void_p), ("thread", c_void_p), ("num_threads", c_void_p)]


class Machine(Structure):
    _fields_ = _fields(
        (c_int, "isa num_threads"),
        (POINTER(c_int), "cpus"),
        (c_int64, "l1_bytes l2_bytes l3_bytes spin_nanoseconds"),
        (c_int, "num_clusters"),
        (POINTER(c_int), "nodes"),
        (POINTER(OpenMP), "openmp"),
    )


class GemmArguments(Structure):
    """hc_gemm_arguments with flat inner structures. One call fills it, at a quarter of the cost of nested access."""

    _fields_ = _fields(
        (c_int64, "m n k"),
        (c_void_p, "a_data"),
        (c_int64, "a_row_stride a_column_stride"),
        (c_int, "a_type"),
        (c_void_p, "b_data"),
        (c_int64, "b_row_stride b_column_stride"),
        (c_int, "b_type"),
        (c_void_p, "c_data"),
        (c_int64, "c_row_stride c_column_stride"),
        # hc_matrix ends with padding. After a and b, the next pointer is aligned without it.
        (c_int, "c_type c_padding compute accumulate"),
        (c_void_p, "row_sum_a bias"),
        (c_int, "bias_type"),
        (c_void_p, "before"),
        (c_int, "before_type gelu"),
        (c_void_p, "gelu_gradient_at gate"),
        (c_int, "gate_type"),
        (c_int64, "gate_stride rows_per_gate"),
        (c_void_p, "residual"),
        (c_int, "residual_type"),
        (c_int64, "mc nc kc"),
        (c_int, "row_cuts column_cuts num_threads cluster_cut"),
        (c_int64, "rows_like"),
        (c_void_p, "packed_b"),
    )


class Heads(Structure):
    """hc_heads: heads (N, H, T, K) at any strides in elements."""

    _fields_ = _fields(
        (c_void_p, "data"),
        (c_int, "type"),
        (c_int64, "image_stride head_stride token_stride"),
    )


class AttentionArguments(Structure):
    _fields_ = _fields(
        (c_int64, "n queries keys h key_heads k"),
        (c_float, "scale"),
        (c_int, "causal compute"),
        (Heads, "query key value out dout out_dquery out_dkey out_dvalue"),
        (c_void_p, "out_lse"),
        (c_int64, "queries_like"),
    )


class AdamwSettings(Structure):
    _fields_ = _fields(
        (c_double, "lr beta1 beta2 eps weight_decay gradient_scale"),
        (c_int64, "step"),
        (c_double, "ema_decay"),
    )


class CopyRequest(Structure):
    _fields_ = _fields(
        (c_int64, "bytes"),
        (c_void_p, "source out_target"),
        (c_int, "source_file target_file"),
        (c_int64, "source_offset target_offset"),
    )


class CopyCounters(Structure):
    _fields_ = _fields(
        (c_int64 * 2, "bytes busy_nanoseconds"),
        (c_int64, "team_bytes queued_bytes failed stall_nanoseconds"),
    )


class PoolOptions(Structure):
    _fields_ = _fields(
        (c_int64, "budget_bytes"),
        (POINTER(c_int), "nodes"),
        (c_void_p, "next"),
        (c_int, "num_nodes file reserved_pages"),
    )


class PoolState(Structure):
    _fields_ = _fields(
        (c_int64, "used_bytes idle_bytes peak_bytes hits misses backed_bytes peak_backed_bytes"),
        (c_int64, "budget_bytes spills spilled_bytes largest_free_bytes num_blocks"),
    )


# hc_callback.
Callback = CFUNCTYPE(None, c_void_p, c_int, c_int)

_ARRAY = (c_void_p, c_int)  # pointer and element type
_ROWS = (c_void_p, c_int, c_int64)  # and stride of rows


def _sized(count: int, *arguments: Any) -> tuple[Any, ...]:
    """Return the arguments of an operator: its context, `count` sizes, and more."""
    return (c_void_p, *[c_int64] * count, *arguments)


# Functions that return a status, with their arguments. Pointers to arrays and to contexts are plain addresses.
STATUS_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "hc_isa_detect": (c_char_p, POINTER(c_int)),
    "hc_kernel": (c_int, c_int, POINTER(c_char_p), POINTER(c_int)),
    "hc_context_create": (POINTER(Machine), POINTER(c_void_p)),
    "hc_context_scratch": (c_void_p, POINTER(c_void_p), POINTER(c_int64)),
    "hc_context_trim": (c_void_p,),
    "hc_run": (c_void_p, Callback, c_void_p),
    "hc_part": (c_int64, c_int64, c_int, c_int, POINTER(c_int64), POINTER(c_int64)),
    "hc_pool_create": (POINTER(PoolOptions), POINTER(c_void_p)),
    "hc_pool_reserved": (c_void_p, POINTER(c_void_p), POINTER(c_int64)),
    "hc_pool_counters": (c_void_p, POINTER(PoolState)),
    "hc_pool_start_peak": (c_void_p,),
    "hc_pool_trim": (c_void_p,),
    "hc_bind": (c_void_p, c_int64, c_int),
    "hc_use_huge_pages": (c_void_p, c_int64),
    "hc_copies_create": (c_void_p, c_int, POINTER(c_int), POINTER(c_void_p)),
    "hc_copies_submit": (c_void_p, POINTER(CopyRequest), c_int, c_int, POINTER(c_int)),
    "hc_copies_wait": (c_void_p, c_void_p, POINTER(c_int), c_int64),
    "hc_copies_advance": (c_void_p, c_void_p, c_int64, POINTER(c_int64)),
    "hc_copies_now": (c_void_p, c_void_p, POINTER(CopyRequest), POINTER(c_int)),
    "hc_copies_counters": (c_void_p, POINTER(CopyCounters)),
    "hc_copies_close": (c_void_p, c_int64),
    "hc_copies_set_faults": (c_void_p, c_int, c_int64, c_int64),
    "hc_gemm": (c_void_p, POINTER(GemmArguments)),
    "hc_gemm_pack_bytes": (c_void_p, POINTER(GemmArguments), c_void_p),
    "hc_gemm_pack": (c_void_p, POINTER(GemmArguments), c_void_p),
    "hc_gemm_cut": (c_void_p, POINTER(GemmArguments), c_int, c_void_p),
    "hc_adaln_forward": _sized(3, c_float, *_ARRAY, c_void_p, *_ROWS, *_ARRAY, c_void_p, c_void_p),
    "hc_adaln_backward": _sized(
        *(3, *_ARRAY, *_ARRAY, *_ROWS, c_void_p, c_void_p),
        *(*_ARRAY, *_ARRAY, c_void_p, *_ARRAY),
    ),
    "hc_gate_residual_forward": _sized(3, *_ARRAY, *_ROWS, *_ARRAY, *_ARRAY),
    "hc_gate_residual_backward": _sized(3, *_ARRAY, *_ROWS, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_attention_forward": _sized(4, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_attention_backward": _sized(4, *_ARRAY, *_ARRAY, *_ARRAY, c_void_p, *_ARRAY, c_int),
    "hc_attention_heads_forward": (c_void_p, POINTER(AttentionArguments)),
    "hc_attention_heads_backward": (c_void_p, POINTER(AttentionArguments)),
    "hc_norm_forward": _sized(2, c_float, *_ARRAY, c_void_p, *_ARRAY, *_ARRAY, c_void_p, c_void_p),
    "hc_norm_backward": _sized(2, *_ARRAY, *_ARRAY, *_ARRAY, c_void_p, c_void_p, *_ARRAY, c_void_p, *_ARRAY),
    "hc_map": (c_void_p, c_int, c_int64, *_ARRAY, *_ARRAY),
    "hc_map_backward": (c_void_p, c_int, c_int64, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_swiglu_forward": _sized(2, *_ARRAY, *_ARRAY),
    "hc_swiglu_backward": _sized(2, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_rotate_heads_forward": _sized(4, c_float, *[c_void_p] * 5, *_ARRAY),
    "hc_rotate_heads_backward": _sized(4, c_float, *[c_void_p] * 6, *_ARRAY, c_void_p, c_void_p),
    "hc_scale_add": _sized(1, c_float, *_ARRAY, c_float, *_ARRAY, *_ARRAY),
    "hc_softmax_forward": _sized(2, *_ARRAY, *_ARRAY),
    "hc_softmax_backward": _sized(2, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_patchify": _sized(5, c_int, *_ARRAY, *_ARRAY),
    "hc_unpatchify": _sized(5, c_int, *_ARRAY, *_ARRAY),
    "hc_mse_forward": _sized(2, *_ARRAY, *_ARRAY, c_void_p),
    "hc_mse_backward": _sized(2, c_void_p, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_sum_of_squares": (c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    "hc_adamw": (c_void_p, POINTER(AdamwSettings), c_int64, *(c_void_p,) * 7),
    "hc_sequence": (c_void_p, c_void_p, c_int64, POINTER(c_int64)),
    "hc_multiply_add_ceiling": (c_void_p, c_int, c_int64, POINTER(c_double)),
    "hc_exchange_bytes": (c_int, c_int, c_int64, POINTER(c_int64)),
    "hc_exchange_attach": (c_void_p, c_void_p, c_int, c_int, c_int, c_int64, POINTER(c_void_p)),
    "hc_exchange_put": (c_void_p, c_uint32, c_void_p, *_ARRAY, c_int, c_int64, POINTER(c_int)),
    "hc_exchange_offer": (c_void_p, c_uint32, c_void_p, *_ARRAY, c_int, c_int64, POINTER(c_int)),
    "hc_exchange_combine": (
        *(c_void_p, c_uint32, c_void_p, *_ARRAY, c_int, c_int, c_float, *_ARRAY),
        *(POINTER(c_void_p), c_int64, POINTER(c_int)),
    ),
    "hc_exchange_publish": (c_void_p, c_uint32),
    "hc_exchange_get": (c_void_p, c_uint32, c_void_p, c_int, c_int, *_ARRAY, c_int64, POINTER(c_int)),
    "hc_exchange_collective": (c_void_p, c_void_p, c_int64, c_int64, POINTER(c_int)),
    "hc_exchange_fold": (c_void_p, c_int, c_int64, POINTER(c_void_p), c_int, c_int, c_void_p),
    "hc_barrier_ceiling": (c_void_p, c_int64),
    "hc_exchange_barrier": (c_void_p, c_int64, POINTER(c_int)),
    "hc_copy": (c_void_p, c_int64, c_void_p, c_void_p),
}

# Functions without a status: type of the result, then the arguments.
OTHER_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "hc_version": (c_int,),
    "hc_isa_name": (c_char_p, c_int),
    "hc_exchange_detach": (None, c_void_p),
    "hc_context_destroy": (None, c_void_p),
    "hc_copies_state": (c_int, POINTER(c_int)),
    "hc_copies_destroy": (None, c_void_p),
    "hc_pool_take": (c_void_p, c_void_p, c_void_p, c_int64),
    "hc_pool_give": (None, c_void_p, c_void_p),
    "hc_pool_close": (None, c_void_p),
    "hc_pool_release": (None, c_void_p),
    "hc_pool_holds": (c_int, c_void_p, c_void_p),
    "hc_pool_tensor": (c_void_p, c_void_p, c_void_p, c_int, c_int, POINTER(c_int64)),
}

# Functions that return a status as result, and functions that wait, for which only a missing process is a result.
QUERIES = ("hc_isa_detect", "hc_kernel")
WAITING = (
    *("hc_exchange_put", "hc_exchange_offer", "hc_exchange_combine", "hc_exchange_get", "hc_exchange_collective"),
    *("hc_copies_wait", "hc_copies_close"),
)


def declare(handle: ctypes.CDLL) -> None:
    """Declare every function of `handle` for ctypes, and make failures raise; AttributeError if it lacks a function."""
    for name, arguments in STATUS_FUNCTIONS.items():
        function = getattr(handle, name)
        function.argtypes, function.restype = arguments, c_int
        if name not in QUERIES:
            function.errcheck = _raise_on_failure if name not in WAITING else _raise_on_bad_argument
    for name, types in OTHER_FUNCTIONS.items():
        function = getattr(handle, name)
        function.argtypes, function.restype = types[1:], types[0]


def _raise_on_bad_argument(status: int, function: Any, arguments: tuple[Any, ...]) -> int:
    return status if status in (PROCESS_GONE, TIMED_OUT) else _raise_on_failure(status, function, arguments)


def _raise_on_failure(status: int, function: Any, arguments: tuple[Any, ...]) -> int:
    if status == OK:
        return status
    text = f"{function.__name__}: {STATUS_TEXTS.get(status, f'status {status}')}"
    raise MemoryError(text) if status == OUT_OF_MEMORY else ValueError(text)
