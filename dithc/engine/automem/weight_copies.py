"""Copies of weights in fast memory that replace the parameters while their unit runs.

The original is the data of a parameter at the copy. A copy is discarded if the parameter gets new data or a new
version. Changes through `.data` or `.detach().numpy()` are not detected while a copy exists: from `Manager.begin_step`,
or the call of the model, to the end of its backward pass. Make these changes before `begin_step`.

A failed copy from a file is an OSError of the pass. A direct read of the file's mapping ends the process with SIGBUS.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dithc.core.logging import get_logger
from dithc.engine import hcops
from dithc.engine.automem.saved_tensors import FLOOR_BYTES
from dithc.engine.memory import CopyEngine, Tier

log = get_logger(__name__)

BeforeLoad = Callable[[Sequence[nn.Parameter]], None]


@dataclass(eq=False)
class _Copy:
    """A copy of a parameter; `version` is the parameter's version at the copy, then at its installation."""

    parameter: nn.Parameter
    original: Tensor
    fast: Tensor
    ticket: Any
    version: int
    is_in_place: bool = False
    users: set[str] = field(default_factory=set)


class WeightCopies:
    """Existing copies of parameters; `before_load` is called with the parameters that are copied next."""

    def __init__(self, fast: Tier, copies: CopyEngine) -> None:
        self._fast, self._copies = fast, copies
        self.before_load: BeforeLoad | None = None
        self.hits = 0  # uses of a ready copy
        self._by_parameter: dict[nn.Parameter, _Copy] = {}
        self._has_warned = False

    def load(self, unit: str, parameters: Sequence[nn.Parameter]) -> None:
        """Start to copy a unit's parameters; if fast memory is full they are used in place."""
        missing = []
        for parameter in parameters:
            copy = self._by_parameter.get(parameter)
            if copy is not None:
                copy.users.add(unit)
            elif is_worth_moving(parameter) and not self._fast.holds(parameter):
                missing.append(parameter)
        if not missing:
            return
        if self.before_load is not None:
            self.before_load(missing)
        for parameter in missing:
            data = parameter.data
            target = allocate_in(self._fast, data.shape, data.dtype)
            if target is not None:
                ticket = self._copies.submit(target, data, stream="load")
                self._by_parameter[parameter] = _Copy(parameter, data, target, ticket, parameter._version, users={unit})

    def use(self, parameters: Iterable[nn.Parameter]) -> None:
        """Install the copies of these parameters when complete; OSError if the disk failed."""
        for parameter in parameters:
            copy = self._by_parameter.get(parameter)
            if copy is None or copy.is_in_place:
                continue
            if self._is_valid(copy):
                parameter.data, copy.is_in_place = copy.fast, True
                self.hits += 1
            else:
                del self._by_parameter[parameter]

    def restore(self, parameters: Iterable[nn.Parameter]) -> None:
        """Reinstall the originals of these parameters; keep the copies."""
        for parameter in parameters:
            copy = self._by_parameter.get(parameter)
            if copy is not None and copy.is_in_place:
                self._reinstall(copy)

    def release(self, unit: str, parameters: Iterable[nn.Parameter]) -> None:
        """Release a unit's copies, unless another unit waits for them."""
        for parameter in parameters:
            copy = self._by_parameter.get(parameter)
            if copy is not None:
                copy.users.discard(unit)
                if not copy.users:
                    self._drop(copy)

    def release_all(self) -> None:
        """Release all copies, and reinstall every original."""
        for copy in list(self._by_parameter.values()):
            self._drop(copy)

    def find(self, address: int) -> nn.Parameter | None:
        """Return the parameter whose installed copy contains an address."""
        for parameter, copy in self._by_parameter.items():
            if copy.is_in_place and 0 <= address - copy.fast.data_ptr() < copy.fast.nbytes:
                return parameter
        return None

    def _is_valid(self, copy: _Copy) -> bool:
        """Wait for a copy; False if it was canceled or is stale."""
        try:
            self._copies.wait(copy.ticket)
        except OSError:  # disk error: reading the file in place may end the process
            self._drop(copy)
            raise
        except RuntimeError as error:
            if not self._has_warned:
                log.warning("no copy of weights into fast memory: %s; they are used from slow memory", str(error))
                self._has_warned = True
            return False
        parameter = copy.parameter
        same_memory = parameter.data_ptr() == copy.original.data_ptr() and parameter.shape == copy.original.shape
        return same_memory and parameter._version == copy.version

    def _drop(self, copy: _Copy) -> None:
        if copy.is_in_place:
            self._reinstall(copy)
        del self._by_parameter[copy.parameter]

    @torch.no_grad()
    def _reinstall(self, copy: _Copy) -> None:
        """Reinstall the original of a parameter, with care for changed weights or new data."""
        parameter, copy.is_in_place = copy.parameter, False
        if parameter.data_ptr() != copy.fast.data_ptr():
            return
        if parameter._version != copy.version:
            copy.original.copy_(copy.fast)
            copy.version = parameter._version
        parameter.data = copy.original


class ParameterAddresses:
    """Map from addresses to the parameters in their original storage."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        by_address = {parameter.data_ptr(): parameter for parameter in parameters if is_worth_moving(parameter)}
        self._starts = sorted(by_address)
        self._parameters = [by_address[start] for start in self._starts]

    def find(self, address: int) -> nn.Parameter | None:
        index = bisect_right(self._starts, address) - 1
        if index >= 0 and address - self._starts[index] < self._parameters[index].nbytes:
            return self._parameters[index]
        return None


def is_worth_moving(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is contiguous and large enough to copy."""
    if isinstance(parameter, nn.parameter.UninitializedParameter) or type(parameter.data) is not Tensor:
        return False
    return (
        parameter.is_cpu
        and parameter.layout is torch.strided
        and parameter.nbytes >= FLOOR_BYTES
        and parameter.is_contiguous()
    )


def allocate_in(tier: Tier, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
    """Return a tensor in exactly this tier, or None if the tier is full."""
    free_bytes = tier.free_bytes
    if free_bytes is not None and free_bytes < shape.numel() * dtype.itemsize:
        return None
    try:
        tensor = tier.empty(shape, dtype)
    except MemoryError:
        return None
    return tensor if tier.holds(tensor) else None


@torch.no_grad()
def move_into(parameters: Iterable[nn.Parameter], tier: Tier) -> int:
    """Move parameters into a tier until it is full; return the number kept in place by other views."""
    num_in_place = 0
    for parameter in parameters:
        if not is_worth_moving(parameter) or tier.holds(parameter):
            continue
        has_views = parameter.untyped_storage().nbytes() != parameter.nbytes
        if has_views or hcops.optimizer.storage_use_count(parameter) != 1:
            num_in_place += 1
        elif (target := allocate_in(tier, parameter.shape, parameter.dtype)) is not None:
            parameter.data = target.copy_(parameter.data)
    return num_in_place
