"""Gradients in slow memory between the backward pass and the optimizer, as planned."""

from functools import partial
from typing import cast
from weakref import ref

import torch
from torch import Tensor, nn

from dithc.core.logging import get_logger
from dithc.engine import hcops
from dithc.engine.automem.weight_copies import is_worth_moving
from dithc.engine.memory import CopyEngine, Tiers

log = get_logger(__name__)


class OffloadedGradients:
    """Offload of the gradients of some parameters to slow memory.

    The backward product of a linear layer writes into a buffer there, unless that is a file, or an earlier gradient is still
    held. Other gradients are copied when complete. A buffer that another owner assigned to a parameter stays in use.
    """

    def __init__(self, tiers: Tiers, copies: CopyEngine) -> None:
        assert tiers.slow is not None, "a single tier does not move tensors"
        self._fast, self._slow, self._copies = tiers.fast, tiers.slow, copies
        self._has_warned = False
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._buffers: dict[nn.Parameter, Tensor] = {}

    def move(self, module: nn.Module) -> None:
        """Keep the gradients of a unit's parameters in slow memory from now on."""
        is_file = self._slow.spec.kind == "file"  # whose new pages would be read before they are written
        matrices = {id(part.weight) for part in module.modules() if isinstance(part, nn.Linear) and not is_file}
        for parameter in module.parameters():
            if not parameter.requires_grad or not is_worth_moving(parameter) or hasattr(parameter, "flat_grad"):
                continue
            if id(parameter) in matrices and parameter.dtype is torch.float32:
                self._assign_buffer(parameter)
            # A parameter's hook must not keep this object alive.
            hook = partial(_offload_gradient, ref(self))
            self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Leave future gradients where the backward pass allocates them."""
        for hook in self._hooks:
            hook.remove()
        for parameter, buffer in self._buffers.items():
            if getattr(parameter, "flat_grad", None) is buffer:
                del parameter.flat_grad, parameter.flat_grad_accumulates  # type: ignore[attr-defined]
        self._hooks.clear()
        self._buffers.clear()

    def refresh(self) -> None:
        """Replace buffers whose earlier gradient is still held, so that the next gradient needs no copy."""
        for parameter, buffer in list(self._buffers.items()):
            if parameter.grad is None and hcops.optimizer.storage_use_count(buffer) > 1:
                self._assign_buffer(parameter)

    def _assign_buffer(self, parameter: nn.Parameter) -> None:
        self._buffers.pop(parameter, None)
        try:
            buffer: Tensor = self._slow.empty(parameter.shape, torch.float32)
        except MemoryError:
            return  # the gradient stays where it was allocated
        hcops.optimizer.assign_grad_view(parameter, buffer, accumulate=False)
        if getattr(parameter, "flat_grad", None) is buffer:
            self._buffers[parameter] = buffer

    @torch.no_grad()
    def offload(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or not gradient.is_contiguous() or not self._fast.holds(gradient):
            return
        buffer: Tensor | None = getattr(parameter, "flat_grad", None)
        if buffer is not None and self._buffers.get(cast(nn.Parameter, parameter)) is not buffer:
            return
        try:
            target = self._slow.empty(gradient.shape, gradient.dtype)
            self._copies.now(target, gradient)
        except (MemoryError, OSError, RuntimeError) as error:
            if not self._has_warned:
                log.warning("a gradient stays in fast memory: %s", str(error))
                self._has_warned = True
            return
        parameter.grad = target


def _offload_gradient(gradients: "ref[OffloadedGradients]", parameter: Tensor) -> None:
    offloader = gradients()
    if offloader is not None:
        offloader.offload(parameter)
