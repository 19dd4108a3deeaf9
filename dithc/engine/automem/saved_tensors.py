"""Handles of the tensors that autograd keeps for backward (`torch.autograd.graph.saved_tensors_hooks`).

A view of a parameter becomes a handle on the parameter and its current copy. Other tensors become handles on the record
of their storage, which views and aliases share. Tensors below a minimum size are not replaced.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

# A copy of fewer bytes takes about as long as its bookkeeping, some microseconds.
FLOOR_BYTES = 64 << 10

Key: TypeAlias = tuple[str, int]  # the unit that saved it first, and its index there


class SavedStorage:
    __slots__ = ("__weakref__", "_storage", "fast_copy", "key", "num_bytes", "original", "slow_copy", "ticket")

    def __init__(self, key: Key, storage: torch.UntypedStorage) -> None:
        self.key, self.num_bytes = key, storage.nbytes()
        # The weak reference prevents reuse of the storage's identity.
        self._storage = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.original: Tensor | None = torch.empty(0, dtype=torch.uint8).set_(storage)  # None after offload
        self.slow_copy: Tensor | None = None  # copy in slow memory, also valid during a load
        self.fast_copy: Tensor | None = None  # copy in fast memory for backward, complete or in progress
        self.ticket: Any = None  # of the copy in progress


class _Handle:
    """Geometry of a saved tensor in a record or a parameter; `counter` shares its version counter and holds no memory."""

    __slots__ = ("counter", "dtype", "offset_bytes", "owner", "size", "stride", "version")

    def __init__(self, owner: SavedStorage | nn.Parameter, tensor: Tensor, offset_bytes: int) -> None:
        self.owner, self.dtype, self.offset_bytes = owner, tensor.dtype, offset_bytes
        self.size, self.stride, self.version = tensor.size(), tensor.stride(), tensor._version
        self.counter = tensor.detach()
        self.counter.data = torch.empty(0, dtype=tensor.dtype)


Packed: TypeAlias = _Handle | tuple[Tensor, int]


class SavedTensorRegistry:
    """Records of one call; `records` holds those still in use, by the unit that saved them first and their index."""

    def __init__(
        self,
        find_weight: Callable[[int], nn.Parameter | None],
        is_tracked: Callable[[Tensor], bool],
        fetch: Callable[[SavedStorage], Tensor],
        enter_unit: Callable[[str], None],
    ) -> None:
        """Create an empty registry of storages that `is_tracked` lets move; `find_weight` maps an address to its parameter.

        In backward, `enter_unit` is called with each unit of which a saved tensor is read, and `fetch` returns the bytes.
        """
        self.records: WeakValueDictionary[Key, SavedStorage] = WeakValueDictionary()
        self._by_storage: WeakValueDictionary[int, SavedStorage] = WeakValueDictionary()
        self._versions: dict[Key, int] = {}
        self._numbers: dict[str, int] = {}
        self._find_weight, self._is_tracked, self._fetch, self._enter_unit = find_weight, is_tracked, fetch, enter_unit

    def hooks(
        self, unit: str, on_save: Callable[[SavedStorage], None] | None = None
    ) -> torch.autograd.graph.saved_tensors_hooks:
        """Return a context for a unit's forward pass; `on_save` is called with each record saved there."""
        pack, unpack = partial(self._pack, unit, on_save), partial(self._unpack, unit)
        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _pack(self, unit: str, on_save: Callable[[SavedStorage], None] | None, tensor: Tensor) -> Packed:
        if not is_plain(tensor) or tensor.is_conj() or tensor.is_neg():
            return tensor, tensor._version
        weight = self._find_weight(tensor.data_ptr())
        if weight is not None and weight.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            return _Handle(weight, tensor, tensor.data_ptr() - weight.data_ptr())
        storage = tensor.untyped_storage()
        if storage.nbytes() < FLOOR_BYTES or not self._is_tracked(tensor):
            return tensor, tensor._version
        record = self._by_storage.get(storage._cdata)
        if record is None or self._versions[record.key] != tensor._version:  # changed in place since then
            number = self._numbers[unit] = self._numbers.get(unit, -1) + 1
            record = SavedStorage((unit, number), storage)
            self._by_storage[storage._cdata] = self.records[record.key] = record
            self._versions[record.key] = tensor._version
        if on_save is not None:
            on_save(record)
        return _Handle(record, tensor, int(tensor.storage_offset()) * tensor.itemsize)

    def _unpack(self, unit: str, packed: Packed) -> Tensor:
        self._enter_unit(unit)
        if isinstance(packed, tuple):
            tensor, version = packed
            _check_version(tensor._version, version, tensor.size())
            return tensor
        _check_version(packed.counter._version, packed.version, packed.size)
        base = self._fetch(packed.owner) if isinstance(packed.owner, SavedStorage) else packed.owner.detach()
        start = base.storage_offset() * base.itemsize + packed.offset_bytes
        view = torch.empty(0, dtype=packed.dtype)
        return view.set_(base.untyped_storage(), start // packed.dtype.itemsize, packed.size, packed.stride)


def has_other_hooks() -> bool:
    """Return whether other hooks are active (recomputation), or hooks are forbidden (torch.func)."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return True
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def tensors_in(value: Any) -> Iterator[Tensor]:
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf


def is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and type(tensor) in (Tensor, nn.Parameter)


def _check_version(version: int, saved: int, size: torch.Size) -> None:
    """Repeat autograd's version check, which it skips under hooks; RuntimeError if the saved tensor was modified."""
    if version != saved:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{'x'.join(map(str, size))}] is at version {version}; expected version {saved} instead"
        )
