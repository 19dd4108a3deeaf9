"""torch's AdamW with the update of HCOps: hooks around its step, which leave torch only the unsupported parameters."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from dithc.core.logging import user_error
from dithc.engine.hcops import optimizer as operators

_HANDLES = "_hcops_handles"
UNSERVED = ("amsgrad", "maximize", "capturable", "differentiable")
"""Options of a group that HCOps does not support."""


def attach(optimizer: torch.optim.Optimizer) -> None:
    """Let HCOps update the fp32 parameters of a torch.optim.AdamW from its next step on; the state remains torch's.

    torch's fused form updates bf16 parameters, because it rounds the result of a step once. UserError: the optimizer is
    not AdamW, or patched already.
    """
    if type(optimizer) is not torch.optim.AdamW:
        fix = "give a torch.optim.AdamW, or leave it out"
        raise user_error("hcops.patch, argument optimizer", got=type(optimizer), expected=torch.optim.AdamW, fix=fix)
    if hasattr(optimizer, _HANDLES):
        got, fix = "an optimizer that is patched", "hcops.unpatch it first"
        raise user_error("hcops.patch, argument optimizer", got=got, expected="one that is not", fix=fix)
    hidden: list[tuple[Tensor, Tensor]] = []
    handles = (
        optimizer.register_step_pre_hook(lambda adamw, args, kwargs: _update(adamw, hidden, args, kwargs)),
        optimizer.register_step_post_hook(lambda *_: _restore_gradients(hidden)),
    )
    setattr(optimizer, _HANDLES, handles)


def detach(optimizer: torch.optim.Optimizer) -> None:
    for handle in optimizer.__dict__.pop(_HANDLES, ()):
        handle.remove()


def _update(optimizer: Any, hidden: list[tuple[Tensor, Tensor]], args: Any, kwargs: Any) -> None:
    """Update supported parameters before torch's step, and hide their gradients from torch until `_restore_gradients`.

    A closure may compute gradients within the step, and a gradient scaler unscale there: torch then updates all.
    """
    hidden.clear()  # left by a failed step
    scaled = any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf"))
    if scaled or any(value is not None for value in (*args[1:], *kwargs.values())):
        return
    for group in optimizer.param_groups:
        if any(group.get(name) for name in UNSERVED) or isinstance(group["lr"], Tensor):
            continue
        weights = [weight for weight in group["params"] if weight.grad is not None]
        fp32, bf16 = (
            [weight for weight in weights if _is_supported(weight, optimizer.state[weight], dtype)]
            for dtype in (torch.float32, torch.bfloat16)
        )
        if fp32:
            _update_fp32(optimizer, group, fp32)
        if bf16:
            _update_bf16(optimizer, group, bf16)
        for weight in (*fp32, *bf16):
            assert weight.grad is not None
            hidden.append((weight, weight.grad))
            weight.grad = None


def _update_fp32(optimizer: Any, group: dict[str, Any], weights: list[Tensor]) -> None:
    steps = _steps(optimizer, weights)
    torch._foreach_add_(steps, 1)  # as torch does
    by_step: dict[int, list[Tensor]] = defaultdict(list)
    for weight, step in zip(weights, steps, strict=True):
        by_step[int(step)].append(weight)
    for number, members in by_step.items():
        operators.adamw(*_lists(optimizer, members), step=number, betas=group["betas"], **_hyperparameters(group))


def _update_bf16(optimizer: Any, group: dict[str, Any], weights: list[Tensor]) -> None:
    steps, (beta1, beta2) = _steps(optimizer, weights), group["betas"]
    with torch.no_grad():
        torch_adamw(*_lists(optimizer, weights), [], steps, fused=True, amsgrad=False, maximize=False,
                    beta1=beta1, beta2=beta2, **_hyperparameters(group))  # fmt: skip


def _restore_gradients(hidden: list[tuple[Tensor, Tensor]]) -> None:
    for weight, gradient in hidden:
        weight.grad = gradient
    hidden.clear()


def _lists(optimizer: Any, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    states = [optimizer.state[weight] for weight in weights]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    return weights, gradients, [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in ("lr", "eps", "weight_decay")}


def _is_supported(weight: Tensor, state: dict[str, Any], dtype: torch.dtype) -> bool:
    return all(
        tensor is not None
        and tensor.dtype is dtype
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        for tensor in (weight, weight.grad, state.get("exp_avg", weight))
    )


def _steps(optimizer: Any, weights: list[Tensor]) -> list[Tensor]:
    """Return the step counter of each weight, after initializing state as torch's AdamW does."""
    for weight in weights:
        state = optimizer.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    return [optimizer.state[weight]["step"] for weight in weights]
