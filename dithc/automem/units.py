"""Units of a model: the modules between which memory decisions change, as the layers of Algorithm 1.

Units are repeated blocks, and modules called next to them. Pure containers are not units, and their own tensors do not move.
"""

from collections.abc import Iterator

import torch
from torch import nn

# A module with parts that are called one after the other is cut further where it holds more than this share of the model's
# parameter bytes: at a budget of a half of all, one unit and the next one on its way have room.
LARGEST_SHARE = 1 / 8
LISTS = (nn.ModuleList, nn.ModuleDict)


def units_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return names and modules of the units in registration order, each module once; an undivided model is unit ""."""
    total = sum(_bytes_of(parameter) for parameter in model.parameters())
    found: dict[int, tuple[str, nn.Module]] = {}
    for name, module in _cut(model, "", total):
        if not isinstance(module, torch.jit.ScriptModule):  # its forward pass cannot be wrapped
            found.setdefault(id(module), (name, module))
    return list(found.values())


def _cut(module: nn.Module, name: str, total: int) -> Iterator[tuple[str, nn.Module]]:
    """Return the units inside of a container, or the module itself if it has none."""
    children = list(module.named_children())
    if not children:
        if not isinstance(module, LISTS):
            yield name, module
        return
    for child_name, child in children:
        path = f"{name}.{child_name}" if name else child_name
        if isinstance(child, LISTS) or _is_cut_further(child, total):
            yield from _cut(child, path, total)
        else:
            yield path, child


def _is_cut_further(module: nn.Module, total: int) -> bool:
    """Whether a module is large, and made of parts that are called by themselves."""
    if sum(_bytes_of(parameter) for parameter in module.parameters()) <= LARGEST_SHARE * total:
        return False
    return (isinstance(module, nn.Sequential) and len(module) > 1) or any(
        isinstance(part, LISTS) for part in module.modules()
    )


def _bytes_of(parameter: nn.Parameter) -> int:
    # Of a parameter without memory yet (lazy modules) nothing is known.
    return 0 if isinstance(parameter, nn.parameter.UninitializedParameter) else parameter.nbytes
