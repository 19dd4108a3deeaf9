"""Passes over tensors in a file tier by pieces, with copies during the computation (Deep Optimizer States, arXiv:2410.21316).

Use of the mapping in place waits for each page. A pass loads the next piece and writes the previous one while the caller
computes with a third.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from dithc.core.logging import get_logger
from dithc.engine.memory.copy_engine import CopyEngine, CopyHandle
from dithc.engine.memory.tiers import Tiers

log = get_logger(__name__)

PIECE_BYTES = 4 << 20
NUM_BUFFERS = 3  # one each to load, to compute and to write
NUM_COLUMNS = 5  # weights, gradients, two moments, averages
LARGEST_SHARE = 1 / 8  # of fast memory for the buffers of all columns
PAGE_BYTES = 4096  # direct access to a file requires multiples of it
MIN_BYTES = 64 << 10  # smaller tensors are used in place

Columns: TypeAlias = Sequence[Sequence[Tensor]]
Row: TypeAlias = tuple[Tensor, ...]


class StreamedTensors:
    """Streamed passes over tensors of the slow tier, if it is a file."""

    def __init__(self, tiers: Tiers, copies: CopyEngine) -> None:
        assert tiers.slow is not None, "a single tier has no file"
        self._fast, self._slow, self._copies = tiers.fast, tiers.slow, copies
        self._has_logged = False
        self.wait_seconds = 0.0  # for copies, in all passes

    @property
    def buffer_bytes(self) -> int:
        """Bytes of fast memory in a pass over `NUM_COLUMNS` columns; 0 without a file tier."""
        return NUM_BUFFERS * NUM_COLUMNS * self._piece_bytes if self._slow.spec.kind == "file" else 0

    @property
    def _piece_bytes(self) -> int:
        budget = self._fast.spec.budget_bytes
        if budget is None:
            return PIECE_BYTES
        share = int(budget * LARGEST_SHARE) // (NUM_BUFFERS * NUM_COLUMNS)
        return max(PAGE_BYTES, min(PIECE_BYTES, share // PAGE_BYTES * PAGE_BYTES))

    def parts(
        self, columns: Columns, *, read_only: Collection[int] = (), done: Callable[[int], None] | None = None
    ) -> Iterator[Columns]:
        """Yield columns of tensors in parts that an elementwise operation changes in place before the next part.

        The first part contains all tensors that are not streamed; it may be empty. The buffers exist when it is yielded, and
        another thread may continue the iteration.

        Args:
            columns: lists of equal length; all tensors of a row have the same number of elements.
            read_only: indices of columns that the operation only reads.
            done: called with the number of each row when its tensors are complete.

        Raises:
            OSError: the disk failed; tensors of the pass are partly changed.
        """
        rows = list(zip(*columns, strict=True))
        is_streamed = [any(map(self._is_streamed, row)) for row in rows]
        buffers = self._buffers([row for row, streamed in zip(rows, is_streamed, strict=True) if streamed])
        if not buffers:
            is_streamed = [False] * len(rows)
        pieces: deque[_Piece] = deque()
        for number, row in enumerate(rows):
            if is_streamed[number]:
                pieces.extend(_Piece(number, *cut) for cut in _cut(row, self._piece_bytes))
                written = [tensor for index, tensor in enumerate(row) if index not in read_only]
                torch.autograd.graph.increment_version(tensor for tensor in written if not tensor.is_inference())
        used = [number for number, streamed in enumerate(is_streamed) if not streamed]
        first = columns if not pieces else [[rows[number][index] for number in used] for index in range(len(columns))]
        del rows, columns  # pieces alone hold the tensors, and free them on the way
        yield first
        del first
        report = done or _ignore
        for number in used:
            report(number)
        yield from self._stream(pieces, buffers, read_only, report)

    def _stream(
        self,
        pieces: deque["_Piece"],
        buffers: list[list[Tensor]],
        read_only: Collection[int],
        done: Callable[[int], None],
    ) -> Iterator[Columns]:
        """Yield each piece with buffers instead of its tensors in the file, and copy these there and back."""
        loading: deque[tuple[_Piece, list[CopyHandle]]] = deque()
        storing: deque[tuple[_Piece, list[CopyHandle]]] = deque()
        num_loaded = 0

        def load() -> None:
            nonlocal num_loaded
            if not pieces:
                return
            if len(storing) + len(loading) == NUM_BUFFERS:
                self._finish(*storing.popleft(), done)
            piece, own = pieces.popleft(), buffers[num_loaded % NUM_BUFFERS]
            piece.local = [
                buffer[: tensor.numel()] if self._slow.holds(tensor) else tensor
                for tensor, buffer in zip(piece.tensors, own, strict=True)
            ]
            handles = [self._copies.submit(to, source, stream="load") for _, source, to in piece.copied()]
            loading.append((piece, handles))
            num_loaded += 1

        for _ in range(NUM_BUFFERS - 1):
            load()
        while loading:
            piece, handles = loading.popleft()
            self._wait(handles)
            yield [[tensor] for tensor in piece.local]
            handles = [
                self._copies.submit(tensor, local, stream="offload")
                for index, tensor, local in piece.copied()
                if index not in read_only
            ]
            storing.append((piece, handles))
            load()
        while storing:
            self._finish(*storing.popleft(), done)

    def _wait(self, handles: Sequence[CopyHandle]) -> None:
        start = time.perf_counter()
        for handle in handles:
            self._copies.wait(handle)
        self.wait_seconds += time.perf_counter() - start

    def _finish(self, piece: "_Piece", handles: Sequence[CopyHandle], done: Callable[[int], None]) -> None:
        """Wait until a piece is in the file, and report its row if that was the last piece."""
        self._wait(handles)
        if piece.is_last:
            done(piece.row)

    def _is_streamed(self, tensor: Tensor) -> bool:
        """Return whether a tensor is large, in the file, and can be cut into pieces."""
        is_file = self._slow.spec.kind == "file" and self._slow.holds(tensor)
        return is_file and tensor.nbytes >= MIN_BYTES and tensor.is_contiguous()

    def _buffers(self, rows: Sequence[Row]) -> list[list[Tensor]]:
        """Return buffers by column, empty for columns in memory; none for other types, or if fast memory is full."""
        tensors = [tensor for row in rows for tensor in row]
        if not rows or any(tensor.dtype is not torch.float32 or not tensor.is_contiguous() for tensor in tensors):
            return []
        count = self._piece_bytes // torch.float32.itemsize
        sizes = [count if any(map(self._slow.holds, column)) else 0 for column in zip(*rows, strict=True)]
        buffers = [[self._fast.empty((size,), torch.float32) for size in sizes] for _ in range(NUM_BUFFERS)]
        if all(self._fast.holds(buffer) for each in buffers for buffer in each if len(buffer)):
            return buffers
        if not self._has_logged:
            log.info("tensors of the file tier are used in place: fast memory is too full for pieces of them")
            self._has_logged = True
        return []


@dataclass(eq=False)
class _Piece:
    """Elements of a row; `local` are its tensors in memory, buffers for those in the file."""

    row: int
    tensors: Row
    is_last: bool
    local: list[Tensor] = field(default_factory=list)

    def copied(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield column, tensor and buffer of each tensor in the file."""
        for index, (tensor, local) in enumerate(zip(self.tensors, self.local, strict=True)):
            if local is not tensor:
                yield index, tensor, local


def _cut(row: Row, piece_bytes: int) -> Iterator[tuple[Row, bool]]:
    """Yield the pieces of a row, and whether each is the last."""
    cuts = [torch.split(tensor.view(-1), piece_bytes // torch.float32.itemsize) for tensor in row]
    for number, piece in enumerate(zip(*cuts, strict=True), start=1):
        yield piece, number == len(cuts[0])


def _ignore(_: int) -> None:
    pass
