"""Offloads of saved tensors from fast memory, and loads back."""

from collections import deque
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from dithc.core.logging import get_logger
from dithc.engine.automem.saved_tensors import SavedStorage
from dithc.engine.automem.weight_copies import room_for
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
        self._leaving: deque[tuple[Any, ref[SavedStorage]]] = deque()
        self._said: set[str] = set()

    def is_tracked(self, tensor: Tensor) -> bool:
        """Return whether a saved tensor may move: it is in a tier, or a file tier offloads any memory."""
        return self._slow.spec.kind == "file" or self._tiers.tier_of(tensor) is not None

    def offload(self, record: SavedStorage) -> None:
        """Start to offload a record; its fast memory is freed on completion."""
        if record.place != "here" or record.here is None:
            return
        tier = self._tiers.tier_of(record.here)
        if tier is not None and tier is not self._fast:
            return  # it was never in fast memory
        try:
            target = self._slow.empty((record.num_bytes,), torch.uint8)
        except MemoryError as error:
            self._say("full", "no memory for offloaded tensors: %s; they stay in fast memory", error)
            return
        if self._tiers.tier_of(target) is self._fast:
            return
        record.away = target
        record.ticket = self._copies.submit(target, record.here, stream="offload")
        self._leaving.append((record.ticket, ref(record)))

    def load(self, record: SavedStorage) -> None:
        """Start to load a record; if fast memory is full it is read in place."""
        self.settle()
        if record.place != "away" or record.away is None:
            return
        target = room_for(self._fast, record.away.shape, torch.uint8)
        if target is not None:
            record.back = target
            record.ticket = self._copies.submit(target, record.away, stream="load")

    def fetch(self, record: SavedStorage) -> Tensor:
        """Return the bytes of a record from the fastest copy; OSError if the disk failed."""
        if record.here is not None:
            return record.here
        if record.back is not None and self._arrived(record):
            self.hits += 1
            return record.back
        assert record.away is not None, "a record has at least one copy"
        return record.away

    def settle(self) -> None:
        """Free the fast memory of completed offloads."""
        while self._leaving and self._copies.is_done(self._leaving[0][0]):
            self._end_oldest()
        self._copies.retire()

    def make_room(self, num_bytes: int) -> None:
        """Wait for offloads until enough fast memory is free, or no offload remains."""
        self.settle()
        while self._leaving:
            room = self._fast.room_bytes
            if room is None or room >= num_bytes:
                return
            self._end_oldest()

    def finish(self) -> None:
        while self._leaving:
            self._end_oldest()

    def _end_oldest(self) -> None:
        """Wait for the oldest offload and free its source, unless the copy failed."""
        ticket, found = self._leaving.popleft()
        try:
            self._copies.wait(ticket)
            has_left = True
        except (OSError, RuntimeError) as error:
            has_left = False
            self._say("failed", "a copy of a saved tensor to slow memory failed: %s; it stays in fast memory", error)
        record = found()
        if record is None or record.ticket is not ticket:
            return
        record.ticket = None
        if has_left:
            record.here = None
        else:
            record.away = None

    def _arrived(self, record: SavedStorage) -> bool:
        """Wait for a load; False if it was canceled and the slow copy is read in place."""
        if record.ticket is None:
            return True
        try:
            self._copies.wait(record.ticket)
        except OSError:  # disk error: reading the file in place may end the process
            record.back = None
            raise
        except RuntimeError as error:
            record.back = None
            self._say("back", "no copy back from slow memory: %s; saved tensors are read there", error)
            return False
        finally:
            record.ticket = None
        return True

    def _say(self, kind: str, text: str, error: BaseException) -> None:
        """Log the error once as text, because a log handler that keeps the exception would keep its frames."""
        if kind not in self._said:
            self._said.add(kind)
            log.warning(text, str(error))
