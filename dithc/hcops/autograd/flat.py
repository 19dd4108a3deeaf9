"""One buffer for the gradients of all matrices, into which the products of the backward pass write directly.

A parameter that takes part has an attribute `flat_grad`, an fp32 view of the buffer in its own shape. `target` decides at each
gradient whether the product may write there; what it returns is given to autograd as the gradient, and autograd keeps
that very tensor as `.grad` because nobody else holds it. So accumulation over micro-batches costs no pass of its own, and hooks
of the parameter's gradient accumulator (DistributedDataParallel's, or `register_post_accumulate_grad_hook`) run as ever.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from dithc.hcops.active import backend_of
from dithc.hcops.table import FALLBACK

# Every gradient starts at a multiple of this many elements: 4,096 bytes, a page.
ALIGNMENT = 1024


def flat_gradients(parameters: Iterable[Parameter], *, zeros: Callable[[int], Tensor] = torch.zeros) -> Tensor:
    """Gives each parameter an attribute `flat_grad` in one new buffer of zeros, fp32, which `zeros` makes and which is returned.

    Only fp32 parameters on the CPU take part; the others keep gradients of their own. Where the reference serves linear
    layers nobody would write there: nothing is set up. Whoever holds on to a `.grad` beyond `zero_grad(set_to_none=True)` holds
    a view of the buffer, which the next backward pass overwrites: clone what is to stay.
    """
    if backend_of("linear") == FALLBACK:
        return torch.zeros(0)
    chosen = [p for p in parameters if _takes_part(p)]
    sizes = [-(-p.numel() // ALIGNMENT) * ALIGNMENT for p in chosen]
    buffer = zeros(sum(sizes))
    start = 0
    for parameter, size in zip(chosen, sizes, strict=True):
        give_place(parameter, buffer[start : start + parameter.numel()].view(parameter.shape))
        start += size
    return buffer


def give_place(parameter: Parameter, view: Tensor, *, accumulate: bool = True) -> None:
    """Set `flat_grad` of a parameter to `view`: fp32, contiguous, of its shape, in a buffer of the caller.

    With `accumulate`, products add to an existing gradient. Otherwise autograd adds in a separate pass, with the same bits as
    without a buffer. `view` then needs its own storage and is written only while no other tensor uses it.
    """
    if _takes_part(parameter) and backend_of("linear") != FALLBACK:
        parameter.flat_grad = view  # type: ignore[attr-defined]
        parameter.flat_grad_accumulates = accumulate  # type: ignore[attr-defined]


def _takes_part(p: Parameter) -> bool:
    return p.requires_grad and p.dtype is torch.float32 and p.is_cpu and p.is_contiguous()


def target(parameter: Any, accumulator: Any) -> tuple[Tensor | None, bool]:
    """Return where the product for the gradient of `parameter` may write, and whether it must add to the content.

    None requests a new tensor. This happens if the gradient will not become `.grad` unchanged (torch.autograd.grad, tensor hooks,
    a graph of the gradient), if `.grad` is another tensor, if the weight is used twice in this pass, if an earlier gradient is
    still referenced, or if the place was removed since the forward pass. `accumulator` is the node that receives the gradient.
    """
    flat: Tensor | None = getattr(parameter, "flat_grad", None)
    if flat is None or parameter._backward_hooks or torch.is_grad_enabled() or not _accumulates(accumulator, parameter):
        return None, False
    if not hasattr(parameter, "flat_grad_on_its_way"):
        parameter.register_post_accumulate_grad_hook(_landed)
    elif parameter.flat_grad_on_its_way:
        return None, False
    held = parameter.grad
    if held is None:
        if not parameter.flat_grad_accumulates and storage_users(flat) > 1:
            return None, False
        parameter.flat_grad_on_its_way = True
        return flat.detach(), False
    if not parameter.flat_grad_accumulates:
        return None, False
    if held.data_ptr() != flat.data_ptr() or held.shape != flat.shape or held.dtype is not flat.dtype:
        return None, False
    parameter.flat_grad_on_its_way = True
    parameter.grad = None  # it comes back with the sum, and without a pass to add it
    return flat.detach(), True


def abandon(parameter: Any, held: Tensor | None) -> None:
    """Undoes `target` where the product failed: `.grad` is what it was, and the next pass may write to the buffer again."""
    parameter.grad = held
    parameter.flat_grad_on_its_way = False


def forget_gradients(parameters: Iterable[Tensor]) -> None:
    """Sets every `.grad` to None; a backward pass that failed leaves nothing on its way either."""
    for parameter in parameters:
        parameter.grad = None
        if hasattr(parameter, "flat_grad_on_its_way"):
            parameter.flat_grad_on_its_way = False


def _accumulates(accumulator: Any, parameter: Any) -> bool:
    """Whether the gradient goes straight to the parameter's `.grad` in this backward pass."""
    if getattr(accumulator, "variable", None) is not parameter:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(accumulator))
    except RuntimeError:  # torch.autograd.grad captures the gradient instead
        return False


def storage_users(tensor: Tensor) -> int:
    """How many tensors share the storage of one, itself among them."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1  # without `storage` itself


def _landed(parameter: Any) -> None:
    parameter.flat_grad_on_its_way = False
