"""The one table of kernels and the pure choice among its lines."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dithc.hcops import reference
from dithc.log import problem

FALLBACK = "reference"


@dataclass(frozen=True)
class Kernel:
    """One line of the table: what serves an operator, in which back end, and why it would be chosen."""

    op: str
    backend: str
    call: Callable[..., Tensor]
    why: str


KERNELS: tuple[Kernel, ...] = (
    Kernel("linear", "reference", reference.linear, "torch's GEMM"),
    Kernel("linear_gelu", "reference", reference.linear_gelu, "torch's GEMM, then torch's tanh GELU"),
    Kernel("adaln", "reference", reference.adaln, "torch's layer norm, then multiply and add"),
    Kernel("gate_residual", "reference", reference.gate_residual, "torch's multiply and add"),
    Kernel("attention", "reference", reference.attention, "torch's scaled dot-product attention"),
    Kernel("silu", "reference", reference.silu, "torch's SiLU"),
)


@dataclass(frozen=True)
class Choice:
    """The kernel that serves an operator and the reason for it."""

    kernel: Kernel
    why: str


def choose(backend: str, *, kernels: tuple[Kernel, ...] = KERNELS) -> dict[str, Choice]:
    """Chooses a kernel for every operator of the table.

    The first line of `backend` wins; an operator it lacks is served by the reference, and the choice says so.

    Raises:
        UserError: no line of the table belongs to `backend`.
    """
    known = list(dict.fromkeys(kernel.backend for kernel in kernels))
    if backend not in known:
        raise problem(
            "unknown back end of the operators",
            got=repr(backend),
            expected=" or ".join(known),
            remedy="name one of these in hcops.use(...) or in the configuration",
        )
    chosen: dict[str, Choice] = {}
    for op in dict.fromkeys(kernel.op for kernel in kernels):
        own = [kernel for kernel in kernels if kernel.op == op and kernel.backend == backend]
        if own:
            chosen[op] = Choice(own[0], f"{own[0].why}; asked for back end {backend}")
        else:
            truth = next(kernel for kernel in kernels if kernel.op == op and kernel.backend == FALLBACK)
            chosen[op] = Choice(truth, f"{truth.why}; back end {backend} has no kernel for {op}")
    return chosen
