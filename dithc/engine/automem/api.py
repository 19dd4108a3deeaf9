"""`AutoMem`: wrappers around the forward passes of a model and of its repeated blocks, installed and removed from outside."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dithc.core.logging import get_logger, user_error
from dithc.engine.automem.manager import Manager
from dithc.engine.automem.planning import Plan
from dithc.engine.memory import CopyEngine, Tiers

log = get_logger(__name__)

Model = TypeVar("Model", bound=nn.Module)
Recompute = Literal["none", "block"]


class _Link:
    """Link from a wrapped forward pass to the manager; absent in copied or unpickled models."""

    def __init__(self, manager: Manager | None = None, unit: str = "") -> None:
        self.manager, self.unit = manager, unit

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Link, ()


def AutoMem(
    model: Model,
    recompute: Recompute = "none",
    *,
    tiers: Tiers | None = None,
    copies: CopyEngine | None = None,
    plan: Plan | None = None,
    allow_recompute: bool = False,
) -> Model:
    """Set up the memory management of `model`, and return it (section 4.2 of the paper, Algorithm 1).

    With two or more tiers the weights move to slow memory. The first two passes are a recorded warm-up, or the first
    with a given plan. From the next step on, a plan places every tensor.

    Args:
        model: Any module. Recomputation requires repeated blocks: its largest `ModuleList` (by parameters), else
            `Sequential`.
        recompute: "block" keeps only the input of each block and runs the block again in backward, for about a third
            more arithmetic. "none" keeps everything.
        tiers: Memory tiers, fastest first. With None or one tier, no tensors move.
        copies: Copy threads; None for separate threads of the manager.
        plan: Plan to use after the warm-up; None to plan from its trace.
        allow_recompute: Allow the plan to run single units again if copies cannot be hidden.

    Raises:
        UserError: `recompute` is unknown, or the model has no repeated blocks.
    """
    if recompute not in ("none", "block"):
        fix = "choose one of the two"
        raise user_error("recompute", got=repr(recompute), expected="none or block", fix=fix)
    _unwrap(model)
    if recompute == "block":
        _recompute_blocks(model)
    else:
        log.info("recompute none: the activations of every block stay in memory until backward")
    if tiers is None or tiers.slow is None:
        log.info("single tier: nothing to move")
        return model
    manager = Manager(model, tiers, copies=copies, plan=plan, allow_recompute=allow_recompute)
    for name in manager.units:
        module = model.get_submodule(name)
        module.forward = partial(_run_unit, _Link(manager, name), module.forward)
    model.forward = partial(_run_model, _Link(manager), model.forward)
    warmup = "two warm-up passes" if plan is None else "one warm-up pass"
    log.info("memory of %d units is managed after %s, each forward and backward", len(manager.units), warmup)
    return model


def get_manager(model: nn.Module) -> Manager | None:
    """Return the manager of a model, or of one inside it (DistributedDataParallel); None if unmanaged."""
    return next((link.manager for module in model.modules() for link in _links(module) if link.manager), None)


def _unwrap(model: nn.Module) -> None:
    """Remove earlier wrappers and end their management."""
    previous = get_manager(model)
    if previous is not None:
        previous.close()
    for module in model.modules():
        for link in _links(module):
            link.manager = None
        forward = vars(module).get("forward")
        while isinstance(forward, partial) and forward.func in (_run_unit, _run_model, _run_recomputed):
            forward = forward.args[-1]
            if getattr(forward, "__func__", None) is type(module).forward:
                del module.forward  # restores the method of the class
            else:
                module.forward = forward


def _links(module: nn.Module) -> list[_Link]:
    links, forward = [], vars(module).get("forward")
    while isinstance(forward, partial):
        links += [value for value in forward.args if isinstance(value, _Link)]
        forward = forward.args[-1] if forward.args else None
    return links


def _run_model(link: _Link, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if link.manager is None or torch.compiler.is_compiling():
        return forward(*args, **kwargs)
    with link.manager.model_call():
        return forward(*args, **kwargs)


def _run_unit(link: _Link, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if link.manager is None or link.manager.active is None or torch.compiler.is_compiling():
        return forward(*args, **kwargs)
    return link.manager.run(link.unit, forward, args, kwargs)


BLOCK_METHOD = "dithc_recompute"
"""Optional method of a block for recomputation with less memory; it returns None if it does not apply."""


def _recompute_blocks(model: nn.Module) -> None:
    """Keep only the input of each repeated block and run the block again in backward; UserError without such blocks."""
    name, blocks = _repeated_blocks(model)
    for block in blocks:
        # Use a partial of a bound method instead of a closure, because deepcopy binds it to the copied block.
        block.forward = partial(_run_recomputed, block.forward)
    log.info("recompute block: %d blocks in %s run again in backward", len(blocks), name)


def _repeated_blocks(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """Return name and children of the list with most parameters; ties go to more children."""
    for kind in (nn.ModuleList, nn.Sequential):
        lists = [
            (name, module) for name, module in model.named_modules() if isinstance(module, kind) and len(module) > 1
        ]
        if lists:
            name, blocks = max(
                lists, key=lambda item: (sum(p.numel() for block in item[1] for p in block.parameters()), len(item[1]))
            )
            return name or type(model).__name__, list(blocks)
    raise user_error(
        "recompute block",
        got=f"{type(model).__name__} without repeated blocks",
        expected="a model containing a ModuleList or Sequential of at least two blocks",
        fix="set recompute to none",
    )


def _run_recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run `forward` with recomputation in backward, if gradients are enabled."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    own = getattr(getattr(forward, "__self__", None), BLOCK_METHOD, None)
    out = None if own is None else own(forward, *args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs) if out is None else out
