"""Offloads of saved tensors from fast memory, and loads back."""

from collections import deque
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from dithc.core.logging import get_logger
from dithc.engine.automem.saved_tensors import SavedStorage
from dithc.engine.automem.weight_copies import allocate_in
from dithc.engine.memory import CopyEngine, Tier, Tiers

log = get_logger(__name__)


class SavedTensorTransfers:
    """Offloads and loads of records. A failed offload leaves its record in place."""

    def __init__(self, tiers: Tiers, copies: CopyEngine) -> None:
        assert tiers.slow is not None, "a single tier does not move tensors"
        self._tiers, self._copies = tiers, copies
        self.hits = 0  # reads of a copy in fast memory
        self._fast: Tier = tiers.fast
        self._slow: Tier = tiers.slow
        # Tickets of offloads, oldest first. The copy of a released record may still run.
        self._offloads: deque[tuple[Any, ref[SavedStorage]]] = deque()
        self._warned: set[str] = set()

    def is_tracked(self, tensor: Tensor) -> bool:
        """Return whether a saved tensor may move: it is in a tier, or a file tier offloads any memory."""
        return self._slow.spec.kind == "file" or self._tiers.tier_of(tensor) is not None

    def offload(self, record: SavedStorage) -> None:
        """Start to offload a record; its fast memory is freed on completion."""
        if record.original is None or record.ticket is not None:
            return
        tier = self._tiers.tier_of(record.original)
        if tier is not None and tier is not self._fast:
            return  # it was never in fast memory
        try:
            target = self._slow.empty((record.num_bytes,), torch.uint8)
        except MemoryError as error:
            self._warn_once("no memory for offloaded tensors: %s; they stay in fast memory", error)
            return
        if self._tiers.tier_of(target) is self._fast:
            return
        record.slow_copy = target
        record.ticket = self._copies.submit(target, record.original, stream="offload")
        self._offloads.append((record.ticket, ref(record)))

    def load(self, record: SavedStorage) -> None:
        """Start to load a record; if fast memory is full it is read in place."""
        self.free_offloaded()
        if record.original is not None or record.fast_copy is not None or record.slow_copy is None:
            return
        target = allocate_in(self._fast, record.slow_copy.shape, torch.uint8)
        if target is not None:
            record.fast_copy = target
            record.ticket = self._copies.submit(target, record.slow_copy, stream="load")

    def fetch(self, record: SavedStorage) -> Tensor:
        """Return the bytes of a record from the fastest copy; OSError if the disk failed."""
        if record.original is not None:
            return record.original
        if record.fast_copy is not None and self._is_loaded(record):
            self.hits += 1
            return record.fast_copy
        assert record.slow_copy is not None, "a record has at least one copy"
        return record.slow_copy

    def free_offloaded(self) -> None:
        while self._offloads and self._copies.is_done(self._offloads[0][0]):
            self._finish_oldest()
        self._copies.retire()

    def wait_for_memory(self, num_bytes: int) -> None:
        """Wait for offloads until enough fast memory is free, or no offload remains."""
        self.free_offloaded()
        while self._offloads:
            free_bytes = self._fast.free_bytes
            if free_bytes is None or free_bytes >= num_bytes:
                return
            self._finish_oldest()

    def finish(self) -> None:
        while self._offloads:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        """Wait for the oldest offload and free its source, unless the copy failed."""
        ticket, record_ref = self._offloads.popleft()
        try:
            self._copies.wait(ticket)
            is_offloaded = True
        except (OSError, RuntimeError) as error:
            is_offloaded = False
            self._warn_once("a copy of a saved tensor to slow memory failed: %s; it stays in fast memory", error)
        record = record_ref()
        if record is None or record.ticket is not ticket:
            return
        record.ticket = None
        if is_offloaded:
            record.original = None
        else:
            record.slow_copy = None

    def _is_loaded(self, record: SavedStorage) -> bool:
        """Wait for a load; False if it was canceled and the slow copy is read in place."""
        if record.ticket is None:
            return True
        try:
            self._copies.wait(record.ticket)
        except (OSError, RuntimeError) as error:
            record.fast_copy = None
            if isinstance(error, OSError):  # disk error: reading the file in place may end the process
                raise
            self._warn_once("no copy back from slow memory: %s; saved tensors are read there", error)
        finally:
            record.ticket = None
        return record.fast_copy is not None

    def _warn_once(self, text: str, error: BaseException) -> None:
        """Log the error once as text, because a log handler that keeps the exception would keep its frames."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text, str(error))
