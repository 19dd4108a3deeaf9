"""Units of a model: the modules between which memory decisions change, as the layers of Algorithm 1.

Units are repeated blocks, and modules called next to them. Pure containers are not units, and their own tensors do not move.
"""

from collections.abc import Iterator

import torch
from torch import nn

# A module with parts that run one after the other is divided further if it holds more than this share of the parameter
# bytes. With a budget of half of all bytes, one unit and the next one then fit.
LARGEST_SHARE = 1 / 8
LISTS = (nn.ModuleList, nn.ModuleDict)


def units_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return names and modules of the units in registration order, each module once; an undivided model is unit ""."""
    total = _bytes_of(model)
    units: dict[int, tuple[str, nn.Module]] = {}
    for name, module in _cut(model, "", total):
        if not isinstance(module, torch.jit.ScriptModule):  # a forward pass that cannot be wrapped
            units.setdefault(id(module), (name, module))
    return list(units.values())


def _cut(module: nn.Module, name: str, total: int) -> Iterator[tuple[str, nn.Module]]:
    """Yield the units inside of a container, or the module itself if it has none."""
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
    """Return whether a module is large and consists of separately called parts."""
    if _bytes_of(module) <= LARGEST_SHARE * total:
        return False
    return (isinstance(module, nn.Sequential) and len(module) > 1) or any(
        isinstance(part, LISTS) for part in module.modules()
    )


def _bytes_of(module: nn.Module) -> int:
    # A parameter without memory (lazy modules) has no known size.
    return sum(p.nbytes for p in module.parameters() if not isinstance(p, nn.parameter.UninitializedParameter))
