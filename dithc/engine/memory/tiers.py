"""Memory tiers of one process, fastest first: pools with budgets, each overflowing into the next.

A tensor is always in valid memory; overflows are counted. Numbers are physical bytes (paper section 4.2: memory
levels).
"""

import os
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dithc.core.logging import get_logger, user_error
from dithc.engine import native
from dithc.engine.hardware import discover_machine
from dithc.engine.memory import copy_bandwidth, file_tier
from dithc.engine.memory.copy_engine import FileMapping
from dithc.engine.memory.pool import Pool, PoolCounters, output_pool, set_output_pool
from dithc.engine.memory.tier_specs import PageKind, TierSpec, describe
from dithc.engine.numa import page_residency

log = get_logger(__name__)

# Budgets are multiples of huge pages.
HUGE_PAGE_BYTES = 2 << 20


class Tier:
    """A tier, created by `Tiers`."""

    def __init__(self, spec: TierSpec, *, next_pool: Pool | None) -> None:
        self.spec = spec
        self.pool: Pool
        self._file: int | None = None
        self._direct_file: int | None = None
        self._file_rates: copy_bandwidth.FileRates | None = None
        if spec.kind != "file":
            reserved = _fits_reserved_pages(spec)
            self.pool = Pool(budget_bytes=spec.budget_bytes, nodes=spec.nodes, next=next_pool, reserved_pages=reserved)
            return
        assert spec.folder is not None, "checked by Tiers"
        assert spec.budget_bytes is not None, "checked by Tiers"
        size_bytes = spec.budget_bytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        self._file = file_tier.create(spec.folder, size_bytes)
        self._direct_file = file_tier.open_direct(self._file)
        self._close_files = weakref.finalize(self, _close, self._file, self._direct_file)
        try:
            self.pool = Pool(budget_bytes=size_bytes, file=self._file, next=next_pool)
        except MemoryError as error:
            raise user_error(
                f"file tier in {spec.folder}",
                got="the system rejected the mapping of the file",
                expected=f"{size_bytes} bytes of addresses (ulimit -v)",
                fix="raise the limit, or make the file smaller",
            ) from error
        self._file_rates = copy_bandwidth.file_rates(spec.folder, self._file, size_bytes)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized contiguous tensor, here or below (a counted spill); MemoryError if all are full."""
        with torch.inference_mode(False):  # tensors in a tier are reused in later steps outside of inference mode
            return self.pool.empty(shape, dtype, floor_bytes=0)

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor's storage is in this tier."""
        return self.pool.holds(tensor.untyped_storage().data_ptr())

    def counters(self) -> PoolCounters:
        return self.pool.counters()

    def mapping(self) -> FileMapping | None:
        """Return the file's mapping, for pread and pwrite; None without an open file."""
        return None if self._file is None else FileMapping(*self.pool.range, self._file, self._direct_file)

    @property
    def free_bytes(self) -> int | None:
        """Bytes between use and budget, possibly fragmented; None without a budget."""
        return self.pool.free_bytes

    @property
    def huge_pages(self) -> PageKind:
        """Page sizes from /proc/self/smaps; an empty tier allocates a first block."""
        if self._file is not None:
            return "file"
        free_bytes = self.free_bytes
        probe = None
        if self.counters().backed_bytes == 0 and (free_bytes is None or free_bytes >= HUGE_PAGE_BYTES):
            probe = self.empty((HUGE_PAGE_BYTES,), torch.uint8)
        start, size = self.pool.range
        residency = page_residency([(start, start + size)])
        if probe is not None:
            del probe
            self.pool.trim()
        return "hugetlb" if residency.reserved_bytes else "transparent" if residency.huge_bytes else "none"

    @property
    def copy_bytes_per_second(self) -> float:
        """Copy rate from ordinary memory into this tier, measured once (`copy_bandwidth`)."""
        return copy_bandwidth.memory_rate(self.spec.nodes) if self._file_rates is None else self._file_rates.write

    @property
    def read_bytes_per_second(self) -> float:
        """Copy rate into ordinary memory; `copy_bytes_per_second` if equally fast."""
        return self.copy_bytes_per_second if self._file_rates is None else self._file_rates.read

    def close(self) -> None:
        """Stop serving; called by `Tiers.close`."""
        self.pool.close()
        if self._file is not None:
            self._file = self._direct_file = None
            self._close_files()


def _close(*descriptors: int | None) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)


# Stack of tiers whose fastest tier serves operator outputs, the latest last.
_serving: list["Tiers"] = []


class Tiers:
    """Tiers of this process, fastest first; tier i overflows into tier i + 1."""

    def __init__(self, specs: Sequence[TierSpec]) -> None:
        """Create the tiers, the last first, and measure copy rates if there are several.

        Raises UserError for an unsuitable folder of a file, an invalid specification, or a budget without the C library.
        """
        _check(specs)
        tiers: list[Tier] = []
        for spec in reversed(specs):
            tiers.append(Tier(spec, next_pool=tiers[-1].pool if tiers else None))
        self._tiers = tuple(reversed(tiers))
        self._previous_pool: Pool | None = None
        if len(specs) > 1:  # measure now, because later there may be no free memory
            for tier in self._tiers:
                _ = tier.copy_bytes_per_second
        log.info("memory tiers, fastest first: %s", "; ".join(describe(spec) for spec in specs))

    def __iter__(self) -> Iterator[Tier]:
        return iter(self._tiers)

    def __len__(self) -> int:
        return len(self._tiers)

    @property
    def fast(self) -> Tier:
        return self._tiers[0]

    @property
    def slow(self) -> Tier | None:
        return self._tiers[1] if len(self._tiers) > 1 else None

    def tier_of(self, tensor: Tensor) -> Tier | None:
        """Return the tier that holds a tensor; None for torch's own memory, or another pool."""
        return next((tier for tier in self._tiers if tier.holds(tensor)), None)

    def serve(self) -> None:
        """Serve operator outputs from the fastest tier from now on."""
        if self._previous_pool is None:
            self._previous_pool = set_output_pool(self.fast.pool)
            _serving.append(self)

    def release(self) -> None:
        """Restore the pool of operator outputs that was active before `serve`."""
        if self._previous_pool is None:
            return
        index = _serving.index(self)
        _serving.remove(self)
        if index < len(_serving):  # other tiers were installed later: relink them to the pool before this one
            _serving[index]._previous_pool = self._previous_pool
        elif output_pool() is self.fast.pool:
            set_output_pool(self._previous_pool)
        self._previous_pool = None

    def close(self) -> None:
        """Close the tiers and log the bytes still in use; the last tensor frees the memory."""
        self.release()
        for tier in self._tiers:
            if used := tier.counters().used_bytes:
                log.debug("memory tier %s: %d bytes are still in use", tier.spec.name, used)
            tier.close()


def _check(specs: Sequence[TierSpec]) -> None:
    if not specs:
        raise user_error("memory tiers", got="none", expected="one or more", fix="list the tiers, fastest first")
    for spec in specs:
        is_file = spec.kind == "file"
        if is_file and (spec.folder is None or (spec.budget_bytes or 0) < HUGE_PAGE_BYTES):
            raise user_error(
                f"memory tier {spec.name}",
                got=f"folder {spec.folder}, {spec.budget_bytes} bytes",
                expected=f"a file tier with a folder and a size of {HUGE_PAGE_BYTES} bytes or more",
                fix="set both, or remove the tier",
            )
        if not is_file and spec.budget_bytes is not None and spec.budget_bytes < 0:
            raise user_error(
                f"budget of memory tier {spec.name}",
                got=f"{spec.budget_bytes} bytes",
                expected="0 bytes or more, or none",
                fix="correct the budget",
            )
    if native.library() is None and (len(specs) > 1 or specs[0].budget_bytes is not None):
        raise user_error(
            "memory tiers",
            got=native.load_library().reason,
            expected="the C library, which implements tiers and budgets",
            fix="reinstall the package, or set no budget and no file tier",
        )


def _fits_reserved_pages(spec: TierSpec) -> bool:
    """Return whether enough reserved huge pages are free on the tier's nodes for its budget."""
    if spec.budget_bytes is None or spec.budget_bytes < HUGE_PAGE_BYTES:
        return False
    machine = discover_machine()
    pools = machine.huge_pages.pools
    if spec.nodes:
        pools = tuple(pool for node in machine.nodes if node.index in spec.nodes for pool in node.huge_page_pools)
    free_bytes = sum(size * num_free for size, _, num_free in pools if size == HUGE_PAGE_BYTES)
    if sum(reserved for _, reserved, _ in pools) and free_bytes < spec.budget_bytes:
        log.info(
            "memory tier %s: %d bytes of reserved huge pages are free, fewer than its %d; using transparent ones",
            *(spec.name, free_bytes, spec.budget_bytes),
        )
    return free_bytes >= spec.budget_bytes
