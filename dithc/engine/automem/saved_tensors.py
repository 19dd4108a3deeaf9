"""Handles of the tensors that autograd keeps for backward (`torch.autograd.graph.saved_tensors_hooks`).

A view of a parameter becomes a handle on the parameter and its current copy. Other tensors become handles on the record
of their storage, which views and aliases share. Tensors below a minimum size are not replaced.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

# A copy of fewer bytes takes about as long as its bookkeeping, some microseconds.
FLOOR_BYTES = 64 << 10

Key: TypeAlias = tuple[str, int]  # the unit that saved it first, and its index there
Place: TypeAlias = Literal["here", "leaving", "away", "coming"]


class SavedStorage:
    __slots__ = ("__weakref__", "_storage", "away", "back", "here", "key", "num_bytes", "ticket")

    def __init__(self, key: Key, storage: torch.UntypedStorage) -> None:
        self.key, self.num_bytes = key, storage.nbytes()
        # The weak reference prevents reuse of the storage's identity.
        self._storage = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.here: Tensor | None = torch.empty(0, dtype=torch.uint8).set_(storage)  # None after offload
        self.away: Tensor | None = None  # copy in slow memory, complete or in progress
        self.back: Tensor | None = None  # copy in fast memory for backward, complete or in progress
        self.ticket: Any = None  # of the copy in progress

    @property
    def place(self) -> Place:
        """State of the bytes; while a load is in progress (`coming`) the slow copy remains valid."""
        if self.here is not None:
            return "here" if self.ticket is None else "leaving"
        return "away" if self.back is None else "coming"


class _Handle:
    """Geometry of a saved tensor in its record; `counter` shares its version counter and holds no memory."""

    __slots__ = ("counter", "dtype", "offset", "record", "size", "stride", "version")

    def __init__(self, record: SavedStorage, tensor: Tensor) -> None:
        self.record, self.dtype = record, tensor.dtype
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), int(tensor.storage_offset())
        self.version = tensor._version
        self.counter = tensor.detach()
        self.counter.data = torch.empty(0, dtype=tensor.dtype)


class _WeightHandle:
    """A saved view of a parameter, `offset_bytes` after its first element."""

    __slots__ = ("dtype", "offset_bytes", "parameter", "size", "stride", "version")

    def __init__(self, parameter: nn.Parameter, tensor: Tensor) -> None:
        self.parameter, self.dtype, self.version = parameter, tensor.dtype, tensor._version
        self.size, self.stride = tensor.size(), tensor.stride()
        self.offset_bytes = tensor.data_ptr() - parameter.data_ptr()

    def tensor(self) -> Tensor:
        _same(self.parameter._version, self.version, self.size)
        now = self.parameter.detach()
        offset = now.storage_offset() * now.itemsize + self.offset_bytes
        return _view(now, self.dtype, offset // self.dtype.itemsize, self.size, self.stride)


Packed: TypeAlias = _Handle | _WeightHandle | tuple[Tensor, int]


class SavedTensorRegistry:
    """Records of one call; `named` holds those still in use, by the unit that saved them first and their index."""

    def __init__(
        self,
        *,
        weight_at: Callable[[int], nn.Parameter | None],
        is_tracked: Callable[[Tensor], bool],
        fetch: Callable[[SavedStorage], Tensor],
        reached: Callable[[str], None],
    ) -> None:
        """Open an empty book of storages that `is_tracked` lets move; `weight_at` maps an address to its parameter.

        In backward, `reached` is called with each unit of which a saved tensor is read, and `fetch` returns the bytes.
        """
        self.named: WeakValueDictionary[Key, SavedStorage] = WeakValueDictionary()
        self._of_storage: WeakValueDictionary[int, SavedStorage] = WeakValueDictionary()
        self._versions: dict[Key, int] = {}
        self._numbers: dict[str, int] = {}
        self._weight_at, self._is_tracked, self._fetch, self._reached = weight_at, is_tracked, fetch, reached

    def hooks(
        self, unit: str, saved: Callable[[SavedStorage], None] | None = None
    ) -> torch.autograd.graph.saved_tensors_hooks:
        """Return a context for a unit's forward pass; `saved` is called with each record saved there."""

        def pack(tensor: Tensor) -> Packed:
            return self._pack(unit, tensor, saved)

        def unpack(packed: Packed) -> Tensor:
            return self._unpack(unit, packed)

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _pack(self, unit: str, tensor: Tensor, saved: Callable[[SavedStorage], None] | None) -> Packed:
        if tensor.layout is not torch.strided or not tensor.is_cpu or not _is_plain(tensor):
            return tensor, tensor._version
        weight = self._weight_at(tensor.data_ptr())
        if weight is not None and weight.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            return _WeightHandle(weight, tensor)
        storage = tensor.untyped_storage()
        if storage.nbytes() < FLOOR_BYTES or not self._is_tracked(tensor):
            return tensor, tensor._version
        record = self._of_storage.get(storage._cdata)
        if record is None or self._versions[record.key] != tensor._version:  # changed in place since then
            number = self._numbers[unit] = self._numbers.get(unit, -1) + 1
            record = SavedStorage((unit, number), storage)
            self._of_storage[storage._cdata] = self.named[record.key] = record
            self._versions[record.key] = tensor._version
        if saved is not None:
            saved(record)
        return _Handle(record, tensor)

    def _unpack(self, unit: str, packed: Packed) -> Tensor:
        self._reached(unit)
        if isinstance(packed, _WeightHandle):
            return packed.tensor()
        if isinstance(packed, tuple):
            tensor, version = packed
            _same(tensor._version, version, tensor.size())
            return tensor
        _same(packed.counter._version, packed.version, packed.size)
        return _view(self._fetch(packed.record), packed.dtype, packed.offset, packed.size, packed.stride)


def other_hooks_are_on() -> bool:
    """Return whether other hooks are active (recomputation), or hooks are forbidden (torch.func)."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return True
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results of a module."""
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_conj() and not tensor.is_neg()


def _same(version: int, saved: int, size: torch.Size) -> None:
    """Repeat autograd's version check, which it skips under hooks; RuntimeError if the saved tensor was modified."""
    if version != saved:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{'x'.join(map(str, size))}] is at version {version}; expected version {saved} instead"
        )


def _view(base: Tensor, dtype: torch.dtype, offset: int, size: torch.Size, stride: tuple[int, ...]) -> Tensor:
    """Return a tensor over the storage of `base`, starting `offset` elements after its start."""
    return torch.empty(0, dtype=dtype).set_(base.untyped_storage(), offset, size, stride)
