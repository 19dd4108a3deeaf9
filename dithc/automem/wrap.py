"""Recomputation of a model's repeated blocks, put around their forward passes from outside."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dithc.log import logger, problem

Model = TypeVar("Model", bound=nn.Module)
Recompute = Literal["none", "block"]


def AutoMem(model: Model, recompute: Recompute = "none") -> Model:
    """Sets up how `model` uses memory, and returns it.

    Args:
        model: any module with a list of repeated blocks; its largest `ModuleList` (by parameters), or else its largest
            `Sequential`, holds them.
        recompute: "block" keeps only the input of each block and runs the block again in backward: the activations
            of one block at a time instead of all, for about a third more arithmetic. "none" keeps everything.

    Returns:
        `model` itself.

    Raises:
        UserError: unknown `recompute`, or no repeated blocks in the model.
    """
    if recompute not in ("none", "block"):
        remedy = "choose one of the two"
        raise problem("choice of recomputation", got=repr(recompute), expected="none or block", remedy=remedy)
    for module in model.modules():
        if _is_recomputed(module):
            del module.forward  # the method of its class shows again
    if recompute == "none":
        logger(__name__).info("recompute none: the activations of every block stay in memory until backward")
        return model
    name, blocks = _repeated_blocks(model)
    for block in blocks:
        # A partial of a bound method, not a closure: deepcopy of it is bound to the copied block.
        block.forward = partial(_recomputing, block.forward)
    logger(__name__).info("recompute block: %d blocks in %s run again in backward", len(blocks), name)
    return model


def _repeated_blocks(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """The name and the children of the list that holds most parameters; of equals, the one with more children."""
    for kind in (nn.ModuleList, nn.Sequential):
        lists = [(name, list(module)) for name, module in model.named_modules() if isinstance(module, kind)]
        lists = [(name, blocks) for name, blocks in lists if len(blocks) > 1]
        if lists:
            name, blocks = max(lists, key=lambda item: (_num_parameters(item[1]), len(item[1])))
            return name or type(model).__name__, blocks
    raise problem(
        "recompute block",
        got=f"{type(model).__name__} without repeated blocks",
        expected="a model with a ModuleList or Sequential of at least two blocks",
        remedy="set recompute to none",
    )


def _num_parameters(blocks: list[nn.Module]) -> int:
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def _is_recomputed(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and forward.func is _recomputing


def _recomputing(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `forward`, forgetting what is inside; nothing is to be forgotten where no gradient is wanted."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
