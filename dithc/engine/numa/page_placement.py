"""Binding of long-lived tensors to the memory nodes of core clusters and to huge pages.

A tensor keeps its virtual address and only its physical pages move, so that `place_pages` may be called at any time.
"""

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from dithc.core.logging import get_logger
from dithc.core.processes import LIBC
from dithc.core.units import MIB
from dithc.engine import native
from dithc.engine.numa.process_memory import PageResidency, Range, page_residency

log = get_logger(__name__)

# The optimizer cuts tensors at the same positions (kernels/optimizer/adamw.c: PAGE_ELEMENTS of fp32). Complete system
# pages are bound, which may be larger: Arm kernels often use 64 KiB.
PAGE_BYTES = 4096
SYSTEM_PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True, kw_only=True)
class PagePlacement:
    """Result of `place_pages`.

    Attributes:
        num_tensors: Distinct tensors.
        num_bytes: Bytes of their elements.
        nodes: Target memory node of each cluster; empty if no memory was bound.
        clusters: Residence of each cluster's parts; a single entry for all tensors if no memory was bound.
    """

    num_tensors: int
    num_bytes: int
    nodes: tuple[int, ...]
    clusters: tuple[PageResidency, ...]

    @property
    def far_bytes(self) -> int:
        """Bytes of all clusters that are on a remote node."""
        return sum(
            pages.resident_bytes - pages.bytes_of_node.get(node, 0)
            for node, pages in zip(self.nodes, self.clusters, strict=False)
        )

    @property
    def huge_bytes(self) -> int:
        return sum(pages.huge_bytes or 0 for pages in self.clusters)

    def describe(self) -> str:
        total = f"of {self.num_bytes / MIB:.0f} MiB in {self.num_tensors} tensors on huge pages"
        huge = f"{self.huge_bytes / MIB:.0f} {total}"
        if not self.nodes:
            return f"one memory node, nothing to bind; {huge}"
        shares = [
            f"node {node} {pages.bytes_of_node.get(node, 0) / MIB:.0f} of {pages.resident_bytes / MIB:.0f} MiB"
            for node, pages in zip(self.nodes, self.clusters, strict=True)
        ]
        return f"clusters' parts on their nodes: {', '.join(shares)}; {huge}"


def place_pages(tensors: Iterable[Tensor], *, nodes: Sequence[int] = ()) -> PagePlacement:
    """Bind the parts of each cluster to its memory node, use huge pages, and log and return the placement.

    Args:
        tensors: Tensors that have been touched. Only contiguous CPU tensors are placed; views of the same elements
            count once.
        nodes: Memory node of each cluster (`ThreadTeam.nodes`). With fewer than two, no memory is bound.
    """
    placed = [tensor for tensor in tensors if tensor.is_cpu and tensor.is_contiguous() and tensor.nbytes]
    ranges = sorted({(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in placed})
    handle = native.library()
    bound = tuple(nodes) if len(nodes) > 1 and handle is not None else ()
    parts: list[list[Range]] = [[] for _ in bound or (None,)]
    for start, stop in ranges:
        for cluster, part in enumerate(cluster_parts(start, stop, len(parts))):
            if part[0] == part[1]:
                continue
            parts[cluster].append(part)
            if bound and handle is not None:
                _bind(handle, part, bound[cluster])
            if handle is not None:
                handle.hc_use_huge_pages(part[0], part[1] - part[0])
    placement = PagePlacement(
        num_tensors=len(ranges),
        num_bytes=sum(stop - start for start, stop in ranges),
        nodes=bound,
        clusters=tuple(page_residency(cluster_ranges) for cluster_ranges in parts),
    )
    log.info("%s", placement.describe())
    if placement.far_bytes > placement.num_bytes // 10:
        log.warning(
            "%.0f MiB are not on the node of their cluster: the node may be full, or binding was denied",
            placement.far_bytes / MIB,
        )
    return placement


def cluster_parts(start: int, stop: int, clusters: int) -> list[Range]:
    """Return the address range of each cluster's part of a tensor from start to stop, in complete pages.

    An inner edge is rounded up to the next page of the address space, so that no page has two owners.
    """
    units, edges = -(-(stop - start) // PAGE_BYTES), [start]
    for cluster in range(1, clusters):
        count = units // clusters * cluster + min(cluster, units % clusters)
        edge = start + count * PAGE_BYTES
        edges.append(min(-(-edge // SYSTEM_PAGE_BYTES) * SYSTEM_PAGE_BYTES, stop))
    edges.append(stop)
    return [(edges[cluster], edges[cluster + 1]) for cluster in range(clusters)]


def _bind(handle: object, part: Range, node: int) -> None:
    """Bind the complete pages of a part; those at its ends are shared with a neighbor."""
    first = -(-part[0] // SYSTEM_PAGE_BYTES) * SYSTEM_PAGE_BYTES
    last = part[1] // SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES
    if first < last:
        try:
            handle.hc_bind(first, last - first, node)  # type: ignore[attr-defined]
        except ValueError as error:
            log.debug("%s", error)


def release_pages(tensor: Tensor) -> None:
    """Return the complete pages of a dense tensor in private memory to the system; their content becomes zero."""
    start = -(-tensor.data_ptr() // SYSTEM_PAGE_BYTES) * SYSTEM_PAGE_BYTES
    size = (tensor.data_ptr() + tensor.nbytes - start) // SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES
    if size > 0:
        LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
