"""How fast tensors are copied into a tier, measured once per process for each place."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter

import torch

from dithc import native
from dithc.log import logger
from dithc.memory.pool import Pool
from dithc.native import ceilings

log = logger(__name__)

# Beyond any core's share of the last level of caches; 16 ms at 1 GB/s.
PROBE_BYTES = 16 << 20
PIECE_BYTES = 4 << 20
ROUNDS = 3
GIGA = 1e9

_of_folder: dict[Path, float] = {}


@cache
def into_memory(nodes: tuple[int, ...]) -> float:
    """Bytes a second of the best of a few copies by the compute team into new memory on `nodes`, which belongs to no tier."""
    source = torch.ones(PROBE_BYTES // 4)
    target = Pool(budget_bytes=PROBE_BYTES, nodes=nodes).empty(source.shape, source.dtype)
    has_team = native.library() is not None
    rate = _best(lambda: ceilings.copy(source, target) if has_team else target.copy_(source), PROBE_BYTES)
    log.debug("copies into memory%s: %.1f GB/s", f" on nodes {nodes}" if nodes else "", rate / GIGA)
    return rate


def into_file(folder: Path, file: int, size_bytes: int) -> float:
    """Bytes a second of the best of a few writes by one thread to the start of a file in which nothing lives yet.

    It is the system's page cache that is measured, as long as the disk keeps up.
    """
    if folder not in _of_folder:
        probe = min(PROBE_BYTES, size_bytes)
        source = memoryview(bytearray(b"\1" * probe))

        def write() -> None:
            for offset in range(0, probe, PIECE_BYTES):
                os.pwrite(file, source[offset : offset + PIECE_BYTES], offset)

        _of_folder[folder] = _best(write, probe)
        log.debug("copies into a file in %s: %.1f GB/s", folder, _of_folder[folder] / GIGA)
    return _of_folder[folder]


def _best(copy: Callable[[], object], num_bytes: int) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = perf_counter()
        copy()
        seconds.append(perf_counter() - start)
    return num_bytes / min(seconds)
