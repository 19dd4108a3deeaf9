"""Copy rates of the streams of `CopyEngine` into and out of a tier, measured once per process and location."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

import torch

from dithc.core.logging import get_logger
from dithc.core.units import GIGA
from dithc.engine import native
from dithc.engine.memory.copy_engine import CopyEngine
from dithc.engine.memory.pool import Pool

log = get_logger(__name__)

# Larger than any core's share of the last-level cache; 16 ms at 1 GB/s.
PROBE_BYTES = 16 << 20
PIECE_BYTES = 4 << 20
ROUNDS = 3
POLL_SECONDS = 0.0005

_file_rates: dict[Path, "FileRates"] = {}


class FileRates(NamedTuple):
    """Bytes per second of the disk behind a file, without the page cache, which large training runs exceed."""

    write: float
    read: float


@cache
def memory_rate(nodes: tuple[int, ...]) -> float:
    """Return bytes per second of the fastest single-thread copy into new memory on `nodes`, outside of tiers."""
    source = torch.ones(PROBE_BYTES // 4)
    target = Pool(budget_bytes=PROBE_BYTES, nodes=nodes).empty(source.shape, source.dtype)
    if native.library() is None:
        rate = _best(lambda: target.copy_(source), PROBE_BYTES)
    else:
        rate = PROBE_BYTES / min(_stream_seconds(target, source))
    log.debug("copies into memory%s: %.1f GB/s", f" on nodes {nodes}" if nodes else "", rate / GIGA)
    return rate


def file_rates(folder: Path, file: int, size_bytes: int) -> FileRates:
    """Return the fastest single-thread write and read at the start of an unused file."""
    if folder not in _file_rates:
        probe = min(PROBE_BYTES, size_bytes)
        offsets = range(0, probe, PIECE_BYTES)
        piece = memoryview(os.urandom(min(PIECE_BYTES, probe)))

        def write() -> None:
            for offset in offsets:
                os.pwrite(file, piece[: probe - offset], offset)
            os.fdatasync(file)

        def read() -> None:
            for offset in offsets:
                os.preadv(file, [buffer], offset)

        buffer = bytearray(PIECE_BYTES)
        rates = _file_rates[folder] = FileRates(
            write=_best(write, probe),
            read=_best(read, probe, prepare=lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)),
        )
        log.info("file tier in %s: %.2f GB/s written, %.2f GB/s read", folder, rates.write / GIGA, rates.read / GIGA)
    return _file_rates[folder]


def _stream_seconds(target: torch.Tensor, source: torch.Tensor) -> list[float]:
    """Return the seconds of each copy without help."""
    copies, seconds = CopyEngine(), []
    for _ in range(ROUNDS):
        start = copies.counters().busy_seconds["load"]
        ticket = copies.submit(target, source, stream="load")
        while not copies.is_done(ticket):
            sleep(POLL_SECONDS)
        copies.wait(ticket)
        seconds.append(copies.counters().busy_seconds["load"] - start)
    copies.close()
    return seconds


def _best(copy: Callable[[], object], num_bytes: int, *, prepare: Callable[[], object] = lambda: None) -> float:
    seconds = []
    for _ in range(ROUNDS):
        prepare()
        start = perf_counter()
        copy()
        seconds.append(perf_counter() - start)
    return num_bytes / min(seconds)
