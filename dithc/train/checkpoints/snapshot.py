"""Assignment of checkpoint pieces to writing ranks, and a copy of the pieces that later steps do not change."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from dithc.core.logging import get_logger
from dithc.core.tensor_files import TensorFile, TensorPiece
from dithc.core.units import MIB
from dithc.engine.numa import available_bytes

# File, name, dimension of the cut (-1 for none), start and count: the identity of a piece.
Key: TypeAlias = tuple[str, str, int, int, int]
# Share of the available memory; the rest is for the training itself, because the first copy may precede the first step.
FREE_SHARE = 0.5
ALIGNMENT = 64
log = get_logger(__name__)


def key_of(file: str, piece: TensorPiece) -> Key:
    """Return the identity of a piece in a file, equal on all ranks with a copy."""
    count = piece.values.numel() if piece.dim is None else piece.values.shape[piece.dim]
    return file, piece.name, -1 if piece.dim is None else piece.dim, piece.start, count


def assign_pieces(sizes: Sequence[Mapping[Key, int]]) -> list[set[Key]]:
    """Return the pieces that each rank writes, with balanced bytes; `sizes` are the bytes of the pieces of each rank."""
    holders: dict[Key, list[int]] = defaultdict(list)
    for rank, keys in enumerate(sizes):
        for key in keys:
            holders[key].append(rank)
    assigned, shares = [0] * len(sizes), [set[Key]() for _ in sizes]
    # Pieces with few holders come first, because they leave little choice; then large ones, so that small ones balance.
    for key in sorted(holders, key=lambda key: (len(holders[key]), -sizes[holders[key][0]][key], key)):
        rank = min(holders[key], key=lambda rank: (assigned[rank], rank))
        assigned[rank] += sizes[rank][key]
        shares[rank].add(key)
    return shares


class Snapshot:
    """Copies of file contents in reused memory, so that later copies cause no page faults."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def copy(self, contents: Mapping[str, TensorFile], *, ranks_on_node: int) -> dict[str, TensorFile] | None:
        """Copy contents by file name with all torch threads; `ranks_on_node` processes copy at the same time.

        The copy is valid until the next call. Returns None if memory is insufficient.
        """
        needed = sum(_aligned(content.num_bytes) for content in contents.values())
        if not self._reserve(needed, ranks_on_node=ranks_on_node):
            return None
        assert self._buffer is not None
        copies, offset = {}, 0
        for name, content in contents.items():
            pieces = []
            for piece in content.pieces:
                stop = offset + piece.values.nbytes
                copy = self._buffer[offset:stop].view(piece.values.dtype).view(piece.values.shape)
                copy.copy_(piece.values.detach())
                pieces.append(replace(piece, values=copy))
                offset = stop
            copies[name] = TensorFile(tuple(pieces), content.metadata)
            offset = _aligned(offset)
        return copies

    def _reserve(self, num_bytes: int, *, ranks_on_node: int) -> bool:
        """Ensure a buffer of at least this size; return False if memory is insufficient."""
        if self._buffer is not None and self._buffer.numel() >= num_bytes:
            return True
        self._buffer, available = None, available_bytes()
        reason = None
        if available is not None and num_bytes * ranks_on_node > FREE_SHARE * available:
            reason = f"{available / MIB:.0f} MiB are available to {ranks_on_node} rank(s) of this node"
        else:
            try:
                self._buffer = torch.zeros(num_bytes, dtype=torch.uint8)
            except RuntimeError as error:  # torch's error for a failed allocation
                reason = str(error).splitlines()[0]
        if reason is not None:
            log.warning(
                f"checkpoints are written while training waits: {num_bytes / MIB:.0f} MiB are missing for a copy of "
                f"this rank's share of the state ({reason})"
            )
            return False
        log.info(f"checkpoints are written in the background, from a copy of {num_bytes / MIB:.1f} MiB per rank")
        return True


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
