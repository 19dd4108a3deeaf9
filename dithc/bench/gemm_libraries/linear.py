"""Linear layers with all three products computed by one library, and their installation under a model.

Legend: K features, F output features, M rows (all dimensions of the input except the last).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dithc.bench.gemm_libraries.libraries import GemmLibrary, Product
from dithc.engine import hcops

# Operators with the product of a linear layer, replaced by the product and the following operators, so that only the
# product differs between libraries.
OPERATORS = ("linear", "linear_gelu", "linear_gate_residual", "mlp")

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class _Linear(torch.autograd.Function):
    """y = x W^T + b with x (M, K), W (F, K), b (F), and its gradients, by three calls of `product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, product: Product) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.product, ctx.has_bias = product, bias is not None
        return product(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = gradients[0].contiguous()  # (M, F)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        dx = ctx.product(dy, weight, None) if needs_x else None
        dweight = ctx.product(dy.t(), x, None) if needs_weight else None
        return dx, dweight, dy.sum(0) if needs_bias and ctx.has_bias else None, None


def make_linear(library: GemmLibrary) -> Linear:
    """Return `torch.nn.functional.linear` by a library: x (..., K), weight (F, K), optional bias (F), with autocast."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        rows = x.reshape(-1, x.shape[-1]).to(dtype).contiguous()  # (M, K)
        y: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            rows, weight.to(dtype).contiguous(), None if bias is None else bias.to(dtype), library.product
        )
        return y.reshape(*x.shape[:-1], weight.shape[0])

    return linear


class _LinearMode(TorchFunctionMode):
    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self._linear = linear

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._linear if func is F.linear else func)(*args, **(kwargs or {}))


@contextmanager
def use_linear(linear: Linear) -> Iterator[None]:
    """Replace the product of every hcops linear layer by `linear`. Torch computes the operators after it.

    Given `hcops.linear`, dithc computes the products and torch the remaining operators.
    """
    unfused = [op for op in OPERATORS if op != "linear"] if linear is hcops.linear else OPERATORS
    with hcops.use("reference", ops=unfused), _LinearMode(linear):
        yield
