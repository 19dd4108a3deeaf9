"""Recomputation of a model's repeated blocks, by wrapping their forward passes from outside."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dithc.log import logger, problem


def recompute_blocks(model: nn.Module) -> None:
    """Keep only the input of each repeated block and run the block again in backward; UserError without such blocks."""
    name, blocks = _repeated_blocks(model)
    for block in blocks:
        # Use a partial of a bound method instead of a closure, because deepcopy binds it to the copied block.
        block.forward = partial(recomputing, block.forward)
    logger(__name__).info("recompute block: %d blocks in %s run again in backward", len(blocks), name)


def _repeated_blocks(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """Return name and children of the list with most parameters; ties go to more children."""
    for kind in (nn.ModuleList, nn.Sequential):
        lists = [(name, list(module)) for name, module in model.named_modules() if isinstance(module, kind)]
        lists = [(name, blocks) for name, blocks in lists if len(blocks) > 1]
        if lists:
            name, blocks = max(
                lists, key=lambda item: (sum(p.numel() for block in item[1] for p in block.parameters()), len(item[1]))
            )
            return name or type(model).__name__, blocks
    raise problem(
        "recompute block",
        got=f"{type(model).__name__} without repeated blocks",
        expected="a model containing a ModuleList or Sequential of at least two blocks",
        fix="set recompute to none",
    )


def recomputing(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run `forward` with recomputation in backward, if gradients are enabled."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
