"""Every function and structure of kernels/include/hcops.h, as ctypes has to know them."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_uint32, c_void_p
from typing import Any

# Results of functions (hc_status) that have an exception of their own.
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
    -10: "an engine that is closed, or whose threads only the parent of this process has",
}


class OpenMP(Structure):
    """hc_openmp: addresses of functions."""

    _fields_ = [("parallel", c_void_p), ("thread", c_void_p), ("num_threads", c_void_p)]


class Machine(Structure):
    """hc_machine."""

    _fields_ = [
        ("isa", c_int),
        ("num_threads", c_int),
        ("cpus", POINTER(c_int)),
        ("l1_bytes", c_int64),
        ("l2_bytes", c_int64),
        ("l3_bytes", c_int64),
        ("spin_nanoseconds", c_int64),
        ("num_clusters", c_int),
        ("nodes", POINTER(c_int)),
        ("openmp", POINTER(OpenMP)),
    ]


class GemmArguments(Structure):
    """hc_gemm_arguments with its inner structures laid flat: one call fills it, which costs a quarter of nested access."""

    _fields_ = [
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("a_data", c_void_p),
        ("a_row_stride", c_int64),
        ("a_column_stride", c_int64),
        ("a_type", c_int),
        ("b_data", c_void_p),
        ("b_row_stride", c_int64),
        ("b_column_stride", c_int64),
        ("b_type", c_int),
        ("c_data", c_void_p),
        ("c_row_stride", c_int64),
        ("c_column_stride", c_int64),
        ("c_type", c_int),
        ("c_padding", c_int),  # the end of hc_matrix; behind a and b the alignment of the next pointer makes it
        ("compute", c_int),
        ("accumulate", c_int),
        ("row_sum_a", c_void_p),
        ("bias", c_void_p),
        ("bias_type", c_int),
        ("before", c_void_p),
        ("before_type", c_int),
        ("gelu", c_int),
        ("gelu_gradient_at", c_void_p),
        ("gate", c_void_p),
        ("gate_type", c_int),
        ("gate_stride", c_int64),
        ("rows_per_gate", c_int64),
        ("residual", c_void_p),
        ("residual_type", c_int),
        ("mc", c_int64),
        ("nc", c_int64),
        ("kc", c_int64),
        ("row_cuts", c_int),
        ("column_cuts", c_int),
        ("num_threads", c_int),
        ("cluster_cut", c_int),
        ("rows_like", c_int64),
        ("packed_b", c_void_p),
    ]


class Heads(Structure):
    """hc_heads: heads (N, H, T, K) at any strides in elements."""

    _fields_ = [
        ("data", c_void_p),
        ("type", c_int),
        ("image_stride", c_int64),
        ("head_stride", c_int64),
        ("token_stride", c_int64),
    ]


class AttentionArguments(Structure):
    """hc_attention_arguments."""

    _fields_ = [
        ("n", c_int64),
        ("queries", c_int64),
        ("keys", c_int64),
        ("h", c_int64),
        ("key_heads", c_int64),
        ("k", c_int64),
        ("scale", c_float),
        ("causal", c_int),
        ("compute", c_int),
        ("query", Heads),
        ("key", Heads),
        ("value", Heads),
        ("out", Heads),
        ("dout", Heads),
        ("out_dquery", Heads),
        ("out_dkey", Heads),
        ("out_dvalue", Heads),
        ("lse", c_void_p),
        ("queries_like", c_int64),
    ]


class AdamwSettings(Structure):
    """hc_adamw_settings."""

    _fields_ = [
        ("lr", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("eps", c_double),
        ("weight_decay", c_double),
        ("gradient_scale", c_double),
        ("step", c_int64),
        ("ema_decay", c_double),
    ]


class CopyRequest(Structure):
    """hc_copy_request."""

    _fields_ = [
        ("bytes", c_int64),
        ("source", c_void_p),
        ("out_target", c_void_p),
        ("source_file", c_int),
        ("target_file", c_int),
        ("source_offset", c_int64),
        ("target_offset", c_int64),
    ]


class CopyCounters(Structure):
    """hc_copy_counters."""

    _fields_ = [
        ("bytes", c_int64 * 2),
        ("busy_nanoseconds", c_int64 * 2),
        ("team_bytes", c_int64),
        ("queued_bytes", c_int64),
        ("failed", c_int64),
        ("stall_nanoseconds", c_int64),
    ]


class PoolOptions(Structure):
    """hc_pool_options."""

    _fields_ = [
        ("budget_bytes", c_int64),
        ("nodes", POINTER(c_int)),
        ("next", c_void_p),
        ("num_nodes", c_int),
        ("file", c_int),
        ("reserved_pages", c_int),
    ]


class PoolState(Structure):
    """hc_pool_state."""

    _fields_ = [
        ("used_bytes", c_int64),
        ("idle_bytes", c_int64),
        ("peak_bytes", c_int64),
        ("hits", c_int64),
        ("misses", c_int64),
        ("backed_bytes", c_int64),
        ("peak_backed_bytes", c_int64),
        ("budget_bytes", c_int64),
        ("spills", c_int64),
        ("spilled_bytes", c_int64),
        ("largest_free_bytes", c_int64),
        ("num_blocks", c_int64),
    ]


# hc_callback.
Callback = CFUNCTYPE(None, c_void_p, c_int, c_int)

_ARRAY = (c_void_p, c_int)  # a pointer and the type of its elements

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
    "hc_pool_budget": (c_void_p, c_int64),
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
    "hc_adaln_forward": (
        *(c_void_p, c_int64, c_int64, c_int64, c_float, *_ARRAY),
        *(c_void_p, c_void_p, c_int, c_int64, *_ARRAY, c_void_p, c_void_p),
    ),
    "hc_adaln_backward": (
        *(c_void_p, c_int64, c_int64, c_int64, *_ARRAY, *_ARRAY, c_void_p, c_int, c_int64),
        *(c_void_p, c_void_p, *_ARRAY, *_ARRAY, c_void_p, c_void_p, c_int),
    ),
    "hc_gate_residual_forward": (
        *(c_void_p, c_int64, c_int64, c_int64, *_ARRAY, c_void_p, c_int, c_int64, *_ARRAY, *_ARRAY),
    ),
    "hc_gate_residual_backward": (
        *(c_void_p, c_int64, c_int64, c_int64, *_ARRAY, c_void_p, c_int, c_int64, *_ARRAY, *_ARRAY, *_ARRAY),
    ),
    "hc_attention_forward": (c_void_p, c_int64, c_int64, c_int64, c_int64, *_ARRAY, *_ARRAY, c_void_p, c_int),
    "hc_attention_backward": (
        *(c_void_p, c_int64, c_int64, c_int64, c_int64, *_ARRAY, *_ARRAY, *_ARRAY, c_void_p, *_ARRAY, c_int),
    ),
    "hc_attention_heads_forward": (c_void_p, POINTER(AttentionArguments)),
    "hc_attention_heads_backward": (c_void_p, POINTER(AttentionArguments)),
    "hc_norm_forward": (c_void_p, c_int64, c_int64, c_float, *_ARRAY, c_void_p, *_ARRAY, *_ARRAY, c_void_p, c_void_p),
    "hc_norm_backward": (
        *(c_void_p, c_int64, c_int64, *_ARRAY, *_ARRAY, *_ARRAY, c_void_p, c_void_p),
        *(*_ARRAY, c_void_p, c_void_p, c_int),
    ),
    "hc_map": (c_void_p, c_int, c_int64, *_ARRAY, *_ARRAY),
    "hc_map_backward": (c_void_p, c_int, c_int64, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_swiglu_forward": (c_void_p, c_int64, c_int64, *_ARRAY, *_ARRAY),
    "hc_swiglu_backward": (c_void_p, c_int64, c_int64, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_rotate_heads_forward": (
        *(c_void_p, c_int64, c_int64, c_int64, c_int64, c_float),
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, *_ARRAY),
    ),
    "hc_rotate_heads_backward": (
        *(c_void_p, c_int64, c_int64, c_int64, c_int64, c_float),
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, *_ARRAY, c_void_p, c_void_p),
    ),
    "hc_scale_add": (c_void_p, c_int64, c_float, *_ARRAY, c_float, *_ARRAY, *_ARRAY),
    "hc_softmax_forward": (c_void_p, c_int64, c_int64, *_ARRAY, *_ARRAY),
    "hc_softmax_backward": (c_void_p, c_int64, c_int64, *_ARRAY, *_ARRAY, *_ARRAY),
    "hc_patchify": (c_void_p, c_int64, c_int64, c_int64, c_int64, c_int64, c_int, *_ARRAY, *_ARRAY),
    "hc_unpatchify": (c_void_p, c_int64, c_int64, c_int64, c_int64, c_int64, c_int, *_ARRAY, *_ARRAY),
    "hc_mse_forward": (c_void_p, c_int64, c_int64, *_ARRAY, *_ARRAY, c_void_p),
    "hc_mse_backward": (c_void_p, c_int64, c_int64, c_void_p, *_ARRAY, *_ARRAY, *_ARRAY),
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
    "hc_exchange_whole": (c_void_p, c_void_p, c_int64, c_int64, POINTER(c_int)),
    "hc_exchange_fold": (c_void_p, c_int, c_int64, POINTER(c_void_p), c_int, c_int, c_void_p),
    "hc_barrier_ceiling": (c_void_p, c_int64),
    "hc_exchange_meet": (c_void_p, c_int64, POINTER(c_int)),
    "hc_copy_blocks": (
        *(c_void_p, c_int64, c_int64, c_int64),
        *(c_void_p, c_int64, c_int64),
        *(c_void_p, c_int64, c_int64),
    ),
    "hc_copy": (c_void_p, c_int64, c_void_p, c_void_p),
}

# Functions that return something else: the type of the result, then the arguments.
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

# Their status is an answer that the caller asks for, not a failure; of those that wait, only who did not come is an answer.
QUESTIONS = ("hc_isa_detect", "hc_kernel")
WAITING = (
    "hc_exchange_put",
    "hc_exchange_offer",
    "hc_exchange_combine",
    "hc_exchange_get",
    "hc_exchange_whole",
    "hc_copies_wait",
    "hc_copies_close",
)


def declare(handle: ctypes.CDLL) -> None:
    """Tells ctypes the arguments and results of every function of `handle`, and lets failures raise.

    Raises:
        AttributeError: the library lacks a function.
    """
    for name, arguments in STATUS_FUNCTIONS.items():
        function = getattr(handle, name)
        function.argtypes, function.restype = arguments, c_int
        if name not in QUESTIONS:
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
