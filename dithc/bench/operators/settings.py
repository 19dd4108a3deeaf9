"""Parts of a case of `bench ops`, and settings common to all cases."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from dithc.bench.rooflines import Precision, pool

TYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

Run = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class OperatorCase:
    """One operator at one shape and type.

    Attributes:
        group: cases of one summary row, such as "gemm DiT-XL/2".
        limit: ceiling that applies.
        work: operations, or bytes that an ideal implementation moves, of all parts; `counted` describes them.
        runs: functions to time, by variant and part (forward, backward); all variants have the same parts.
    """

    op: str
    group: str
    name: str
    dtype: Precision
    shape: Mapping[str, int]
    limit: Literal["multiply_add", "copy"]
    work: float
    counted: str
    runs: Mapping[str, Mapping[str, Run]] = field(repr=False)


def autocast_context(dtype: Precision, device: str = "cpu") -> AbstractContextManager[Any]:
    """Return the context of a forward pass in training, for building and running cases."""
    return torch.autocast(device, dtype=torch.bfloat16) if dtype == "bf16" else nullcontext()


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Return normal values that depend only on shape and seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def as_output(tensor: Tensor) -> Tensor:
    """Copy a tensor into the pool, where hcops operators read the outputs of other operators."""
    return pool().empty(tensor.shape, tensor.dtype).copy_(tensor)


def passes(call: Callable[..., Tensor], inputs: Sequence[Tensor], dout: Tensor) -> dict[str, Run]:
    """Return the forward pass of `call` on `inputs`, and the backward pass from `dout`."""
    for tensor in inputs:
        tensor.requires_grad_()
    return {"forward": lambda: call(*inputs), "backward": backward_of(call(*inputs), inputs, dout)}


def hcops_passes(call: Callable[..., Tensor], inputs: Sequence[Tensor], dout: Tensor) -> dict[str, Run]:
    """Return `passes` of an hcops operator with inputs and gradient in the pool."""
    placed = [as_output(tensor.detach()) for tensor in inputs]
    return passes(call, placed, as_output(dout.to(call(*placed).dtype)))


def backward_of(out: Tensor, inputs: Sequence[Tensor], dout: Tensor) -> Run:
    """Return a repeatable gradient computation of `out` from `dout`, cast to its type."""
    gradient = dout.to(out.dtype)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)
