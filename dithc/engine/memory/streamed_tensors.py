"""Passes over tensors in a file tier by pieces, with copies during the computation (Deep Optimizer States, arXiv:2410.21316).

Use of the mapping in place waits for each page. A pass loads the next piece and writes the previous one while the caller
computes with a third.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from dithc.core.logging import get_logger
from dithc.engine.memory.copy_engine import CopyEngine, CopyHandle
from dithc.engine.memory.tiers import Tiers

log = get_logger(__name__)

PIECE_BYTES = 8 << 20  # a multiple of the pages, for direct access to the file
NUM_BUFFERS = 3  # one each to load, to compute and to write
MIN_BYTES = 1 << 20  # smaller tensors are used in place

Columns: TypeAlias = Sequence[Sequence[Tensor]]
Row: TypeAlias = tuple[Tensor, ...]


class StreamedTensors:
    """Streamed passes over tensors of the slow tier, if it is a file."""

    def __init__(self, tiers: Tiers, copies: CopyEngine) -> None:
        assert tiers.slow is not None, "a single tier has no file"
        self._fast, self._slow, self._copies = tiers.fast, tiers.slow, copies
        self._has_logged = False

    def parts(self, columns: Columns, *, read_only: Collection[int] = ()) -> Iterator[Columns]:
        """Yield columns of tensors in parts that an elementwise operation changes in place before the next part.

        Args:
            columns: lists of equal length; all tensors of a row have the same number of elements.
            read_only: indices of columns that the operation only reads.

        Raises:
            OSError: the disk failed; tensors of the pass are partly changed.
        """
        streamed, others = list[Row](), list[Row]()
        for row in zip(*columns, strict=True):
            (streamed if any(map(self._is_streamed, row)) else others).append(row)
        buffers = self._buffers(streamed)
        if not buffers:
            yield columns
            return
        yield [[row[index] for row in others] for index in range(len(columns))]
        yield from self._stream(list(_pieces(streamed)), buffers, read_only)
        written = [tensor for row in streamed for index, tensor in enumerate(row) if index not in read_only]
        torch.autograd.graph.increment_version(tensor for tensor in written if not tensor.is_inference())

    def _stream(
        self, pieces: list[list[Tensor]], buffers: list[list[Tensor]], read_only: Collection[int]
    ) -> Iterator[Columns]:
        """Yield each piece with buffers instead of its tensors in the file, and copy these there and back."""
        copied = [[self._slow.holds(tensor) for tensor in piece] for piece in pieces]
        loads: dict[int, list[CopyHandle]] = {}
        stores: dict[int, list[CopyHandle]] = {}

        def wait(handles: list[CopyHandle]) -> None:
            for handle in handles:
                self._copies.wait(handle)

        def pairs(number: int) -> Iterator[tuple[int, Tensor, Tensor]]:
            for index, tensor in enumerate(pieces[number]):
                if copied[number][index]:
                    yield index, tensor, buffers[number % NUM_BUFFERS][index][: tensor.numel()]

        def load(number: int) -> None:
            if number < len(pieces):
                wait(stores.pop(number - NUM_BUFFERS, []))
                loads[number] = [self._copies.submit(to, tensor, stream="load") for _, tensor, to in pairs(number)]

        for number in range(NUM_BUFFERS - 1):
            load(number)
        for number, piece in enumerate(pieces):
            wait(loads.pop(number))
            local = list(piece)
            for index, _, buffer in pairs(number):
                local[index] = buffer
            yield [[tensor] for tensor in local]
            stores[number] = [
                self._copies.submit(tensor, buffer, stream="offload")
                for index, tensor, buffer in pairs(number)
                if index not in read_only
            ]
            load(number + NUM_BUFFERS - 1)
        for handles in stores.values():
            wait(handles)

    def _is_streamed(self, tensor: Tensor) -> bool:
        """Return whether a tensor is large, in the file, and can be cut into pieces."""
        is_file = self._slow.spec.kind == "file" and self._slow.holds(tensor)
        return is_file and tensor.nbytes >= MIN_BYTES and tensor.is_contiguous()

    def _buffers(self, rows: Sequence[Row]) -> list[list[Tensor]]:
        """Return buffers of a piece for each tensor of a row; none without rows, for other types, or if fast memory is full."""
        if not rows or any(
            tensor.dtype is not torch.float32 or not tensor.is_contiguous() for row in rows for tensor in row
        ):
            return []
        shape = (PIECE_BYTES // torch.float32.itemsize,)
        buffers = [[self._fast.empty(shape, torch.float32) for _ in rows[0]] for _ in range(NUM_BUFFERS)]
        if all(self._fast.holds(buffer) for each in buffers for buffer in each):
            return buffers
        if not self._has_logged:
            log.info(
                "tensors of the file tier are used in place: fast memory is too full for pieces of %d bytes",
                PIECE_BYTES,
            )
            self._has_logged = True
        return []


def _pieces(rows: Sequence[Row]) -> Iterator[list[Tensor]]:
    size = PIECE_BYTES // torch.float32.itemsize
    for row in rows:
        yield from map(list, zip(*(torch.split(tensor.view(-1), size) for tensor in row), strict=True))
