"""One buffer for the gradients of all matrices, to which the products of the backward pass write directly.

A participating parameter has an attribute `flat_grad`, an fp32 view of the buffer in its shape. autograd keeps the
returned tensor as `.grad` because no other reference exists. Accumulation over micro-batches therefore needs no
separate pass. Hooks of the gradient accumulator run as usual.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from dithc.engine.hcops.backend import backend_of
from dithc.engine.hcops.kernel_registry import FALLBACK

# Alignment of every gradient in elements: 4,096 bytes, a page.
ALIGNMENT = 1024

_sums = local()  # `places` of `summing`


def flat_gradients(parameters: Iterable[Parameter], *, zeros: Callable[[int], Tensor] = torch.zeros) -> Tensor:
    """Set `flat_grad` of each parameter to a view of a new fp32 buffer from `zeros`, and return the buffer.

    Only fp32 parameters on the CPU participate. If the reference computes linear layers, the buffer is empty. A `.grad`
    kept beyond `zero_grad(set_to_none=True)` is a view of the buffer, which the next backward pass overwrites.
    """
    if backend_of("linear") == FALLBACK:
        return torch.zeros(0)
    eligible = [p for p in parameters if _is_eligible(p)]
    sizes = [-(-p.numel() // ALIGNMENT) * ALIGNMENT for p in eligible]
    buffer = zeros(sum(sizes))
    start = 0
    for parameter, size in zip(eligible, sizes, strict=True):
        assign_grad_view(parameter, buffer[start : start + parameter.numel()].view(parameter.shape))
        start += size
    return buffer


def assign_grad_view(parameter: Parameter, view: Tensor, *, accumulate: bool = True) -> None:
    """Set `flat_grad` of a parameter to `view`: fp32, contiguous, of its shape, in a buffer of the caller.

    With `accumulate`, products add to an existing gradient. Otherwise autograd adds, with the same bits as without a
    buffer. `view` then needs its own storage and is written only while no other tensor uses it.
    """
    if _is_eligible(parameter) and backend_of("linear") != FALLBACK:
        parameter.flat_grad = view  # type: ignore[attr-defined]
        parameter.flat_grad_accumulates = accumulate  # type: ignore[attr-defined]


def _is_eligible(p: Parameter) -> bool:
    return p.requires_grad and p.dtype is torch.float32 and p.is_cpu and p.is_contiguous()


def target(parameter: Any, accumulator: Any) -> tuple[Tensor | None, bool]:
    """Return where the product for the gradient of `parameter` may write, and whether it must add to the content.

    None requests a new tensor: if the gradient will not become `.grad` unchanged (torch.autograd.grad, tensor hooks, a
    graph of the gradient), if `.grad` is another tensor, if the weight is used twice in this pass, if a gradient is
    still referenced, or if the place was removed. The node `accumulator` receives the gradient.
    """
    if (place := _places().get(parameter)) is not None:
        accumulates, _places()[parameter] = place[1], (place[0], True)
        return place[0], accumulates
    flat: Tensor | None = getattr(parameter, "flat_grad", None)
    if flat is None or parameter._backward_hooks or torch.is_grad_enabled() or not _accumulates(accumulator, parameter):
        return None, False
    if not hasattr(parameter, "flat_grad_pending"):
        parameter.register_post_accumulate_grad_hook(_clear_pending)
    elif parameter.flat_grad_pending:
        return None, False
    previous, is_usable = parameter.grad, parameter.flat_grad_accumulates
    if previous is None:
        is_usable = is_usable or storage_use_count(flat) <= 1
    elif previous.data_ptr() != flat.data_ptr() or previous.shape != flat.shape or previous.dtype is not flat.dtype:
        is_usable = False
    if not is_usable:
        return None, False
    parameter.flat_grad_pending = True
    parameter.grad = None  # set again by autograd, with the sum, without a separate pass to add
    return flat.detach(), previous is not None


@contextmanager
def summing(places: dict[Any, tuple[Tensor, bool]]) -> Iterator[None]:
    """Let products write the gradients of weights to their places, or add to places with True, also in torch.autograd.grad.

    A place becomes True after its first product, so that gradients of parts of the tokens add up without a separate pass.
    """
    previous, _sums.places = _places(), places
    try:
        yield
    finally:
        _sums.places = previous


def _places() -> dict[Any, tuple[Tensor, bool]]:
    return getattr(_sums, "places", {})


def has_place(parameter: Any) -> bool:
    """Return whether products may write the gradient of a weight to a place."""
    return hasattr(parameter, "flat_grad") or parameter in _places()


def restore_grad(parameter: Any, gradient: Tensor | None) -> None:
    """Undo the preparation after a failed product: restore `.grad`, and let the next pass write to the buffer."""
    parameter.grad = gradient
    parameter.flat_grad_pending = False


def zero_grad(parameters: Iterable[Tensor]) -> None:
    """Set every `.grad` to None, and clear the state of a failed backward pass."""
    for parameter in parameters:
        parameter.grad = None
        if hasattr(parameter, "flat_grad_pending"):
            parameter.flat_grad_pending = False


def _accumulates(accumulator: Any, parameter: Any) -> bool:
    """Return whether this backward pass stores the gradient directly in the parameter's `.grad`."""
    if getattr(accumulator, "variable", None) is not parameter:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(accumulator))
    except RuntimeError:  # torch.autograd.grad captures the gradient instead
        return False


def storage_use_count(tensor: Tensor) -> int:
    """Return the number of tensors that share the storage of `tensor`, including itself."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1  # without `storage` itself


def _clear_pending(parameter: Any) -> None:
    parameter.flat_grad_pending = False
