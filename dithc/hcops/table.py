"""The one table of kernels, the pure choice among its lines, and the choice that is active.

Two kinds of kernels: the reference's are plain torch with torch's own gradients; those of `numba` and `c` are raw, a forward
and a backward function of tensors each, which `custom.py` makes into operators of torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from dithc import native
from dithc.hcops import reference
from dithc.log import problem

FALLBACK = "reference"
# Best first: the first one that works here is the default.
FAST = ("c", "numba")


@dataclass(frozen=True)
class Kernel:
    """One line of the table: what serves an operator, in which back end, and why it would be chosen.

    Attributes:
        op: the operator.
        backend: reference, numba or c.
        why: what it is.
        parts: the C kernels behind a line of `c`, by their names in kernels/kernel_table.h; a trailing * stands for any
            end. None where it is plain C, the same for every instruction set.
    """

    op: str
    backend: str
    why: str
    parts: tuple[str, ...] = ()


_PRODUCTS = ("gemm_f32", "gemm_f32_split", "gemm_bf16", "epilogue", "few_*")
_MAP = ("map*",)

KERNELS: tuple[Kernel, ...] = (
    Kernel("linear", "reference", "torch's GEMM"),
    Kernel("linear_gelu", "reference", "torch's GEMM, then torch's tanh GELU"),
    Kernel("linear_gate_residual", "reference", "torch's GEMM, then multiply and add"),
    Kernel("mlp", "reference", "torch's GEMMs, then torch's tanh GELU, multiply and add"),
    Kernel("adaln", "reference", "torch's layer norm, then multiply and add"),
    Kernel("adarms", "reference", "torch's RMS norm, then multiply and add"),
    Kernel("gate_residual", "reference", "torch's multiply and add"),
    Kernel("attention", "reference", "torch's scaled dot-product attention"),
    Kernel("rotate_heads", "reference", "torch's RMS norm, multiply and add, then a copy"),
    Kernel("swiglu", "reference", "torch's SiLU and multiply"),
    Kernel("silu", "reference", "torch's SiLU"),
    Kernel("gelu", "reference", "torch's tanh GELU"),
    Kernel("softmax", "reference", "torch's softmax"),
    Kernel("mse", "reference", "torch's subtraction, square and mean"),
    Kernel("patchify", "reference", "torch's permuted copy"),
    Kernel("unpatchify", "reference", "torch's permuted copy"),
    Kernel("exp", "reference", "torch's exp"),
    Kernel("tanh", "reference", "torch's tanh"),
    Kernel("scale_add", "reference", "torch's multiply and add"),
    Kernel("sum_of_squares", "reference", "torch's norm of each tensor"),
    Kernel("adamw", "reference", "torch's fused AdamW between passes for clipping and average"),
    Kernel("linear", "numba", "blocked GEMM"),
    Kernel("linear_gelu", "numba", "blocked GEMM with bias and GELU in its end"),
    Kernel("linear_gate_residual", "numba", "blocked GEMM with bias, gate and residual in its end"),
    Kernel("mlp", "numba", "both layers; the GELU's gradient in the end of the second one's product"),
    Kernel("adaln", "numba", "norm and modulation in one pass over a token"),
    Kernel("adarms", "numba", "norm and modulation in one pass over a token"),
    Kernel("gate_residual", "numba", "one pass"),
    Kernel("rotate_heads", "numba", "norm and rotation in one pass over a token"),
    Kernel("attention", "numba", "blocks of scores that stay in cache, no T x T array"),
    *(
        Kernel(op, "numba", "one pass")
        for op in ("swiglu", "silu", "gelu", "softmax", "mse", "patchify", "unpatchify", "exp", "tanh", "scale_add")
    ),
    Kernel("sum_of_squares", "numba", "one pass"),
    Kernel("adamw", "numba", "clipping, moments, update and average in one pass"),
    Kernel("linear", "c", "packed GEMM with the bias in its end", _PRODUCTS),
    Kernel("linear_gelu", "c", "packed GEMM with bias and GELU in its end", _PRODUCTS),
    Kernel("linear_gate_residual", "c", "packed GEMM with bias, gate and residual in its end", _PRODUCTS),
    Kernel("mlp", "c", "both layers; the GELU's gradient in the end of the second one's product", _PRODUCTS),
    Kernel("adaln", "c", "norm and modulation in one pass over a token", ("adaln*", "add_blocks")),
    Kernel("adarms", "c", "norm and modulation in one pass over a token", ("adaln*", "add_blocks")),
    Kernel("gate_residual", "c", "one pass", ("gate_residual*", "add_blocks")),
    Kernel("attention", "c", "flash attention: blocks of scores that stay in cache", ("attention*", *_PRODUCTS[:2])),
    Kernel("rotate_heads", "c", "norm and rotation in one pass over a token", ("rotate_heads*", "add_blocks")),
    Kernel("swiglu", "c", "one pass", ("swiglu*",)),
    Kernel("silu", "c", "one pass", _MAP),
    Kernel("gelu", "c", "one pass", _MAP),
    Kernel("softmax", "c", "one pass over a row", ("softmax*",)),
    Kernel("mse", "c", "one pass", ("squared_difference", "scaled_difference", "add_blocks")),
    Kernel("patchify", "c", "one pass"),
    Kernel("unpatchify", "c", "one pass"),
    Kernel("exp", "c", "one pass", _MAP),
    Kernel("tanh", "c", "one pass", _MAP),
    Kernel("scale_add", "c", "one pass", ("scale_add*",)),
    Kernel("sum_of_squares", "c", "one pass in a fixed order", ("sum_of_squares*",)),
    Kernel("adamw", "c", "clipping, moments, update and average in one pass", ("adamw*",)),
)


@dataclass(frozen=True)
class Choice:
    """The kernel that serves an operator and the reason for it."""

    kernel: Kernel
    why: str


def choose(backend: str, *, because: str | None = None, kernels: tuple[Kernel, ...] = KERNELS) -> dict[str, Choice]:
    """Choose the first kernel of `backend` for every operator of the table; the reference serves operators without one.

    `because` replaces the reason that the back end was requested. Raises UserError if the table has no line of `backend`.
    """
    known = list(dict.fromkeys(kernel.backend for kernel in kernels))
    if backend not in known:
        raise problem(
            "unknown back end of the operators",
            got=repr(backend),
            expected=" or ".join(known),
            fix="name one of these in hcops.use(...) or in the configuration",
        )
    chosen: dict[str, Choice] = {}
    for op in dict.fromkeys(kernel.op for kernel in kernels):
        own = [kernel for kernel in kernels if kernel.op == op and kernel.backend == backend]
        if own:
            chosen[op] = Choice(own[0], f"{own[0].why}; {because or f'asked for back end {backend}'}")
        else:
            truth = next(kernel for kernel in kernels if kernel.op == op and kernel.backend == FALLBACK)
            chosen[op] = Choice(truth, f"{truth.why}; back end {backend} has no kernel for {op}")
    return chosen


def obstacle(backend: str) -> str | None:
    """Why a back end cannot work here; None when it can."""
    if backend == "c" and native.library() is None:
        return native.load().reason
    if backend == "numba" and find_spec("numba") is None:
        return "Numba is not installed"
    return None


def default() -> tuple[str, str]:
    """The back end that serves where nobody has chosen one, and the reason."""
    reasons: list[str] = []
    for backend in FAST:
        found = obstacle(backend)
        if found is None:
            return backend, "; ".join(["the fastest back end that works here", *reasons])
        reasons.append(f"not {backend}: {found}")
    return FALLBACK, "; ".join(reasons)


@cache
def raw_of(backend: str, name: str) -> Callable[..., Any]:
    """Return the raw kernel `name`, such as linear_backward, of a back end; raise UserError if it has none."""
    for module in _modules(backend):
        if callable(found := getattr(module, name, None)):
            return found  # type: ignore[no-any-return]
    fix = "choose a back end that has it with hcops.use(...)"
    raise problem(f"raw kernel {name}", got=f"back end {backend}", expected="a back end that has it", fix=fix)


def _modules(backend: str) -> tuple[object, ...]:
    """The files of a back end, imported when it is first used: Numba takes a second."""
    if backend == "c":
        from dithc.hcops import c

        return c.matrix, c.vector
    if backend == "numba":
        from dithc.hcops import numba

        return numba.operators, numba.vector, numba.heads
    return (reference,)
