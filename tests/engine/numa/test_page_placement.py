"""Parts of tensors are bound to the nodes of core clusters and put on huge pages, with unchanged content."""

import ctypes
import logging
import mmap
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dithc.engine import native
from dithc.engine.cftp import partition
from dithc.engine.memory import Pool
from dithc.engine.native.loading import isa_number
from dithc.engine.native.signatures import Machine
from dithc.engine.numa import (
    available_bytes,
    page_placement,
    page_residency,
    peak_rss_bytes,
    place_pages,
    pss_bytes,
    reset_peak_rss,
)
from tests.engine.native.scripts import run_script

MIB = 1 << 20
MADV_COLLAPSE = 25  # from Linux 6.1 on; the mmap module does not define it
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_library = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
needs_numa_maps = pytest.mark.skipif(
    not page_residency([(0, 1 << 62)]).bytes_of_node, reason="the kernel keeps no /proc/self/numa_maps"
)


@pytest.fixture
def binds():
    """Skip if the system rejects mbind, like the seccomp filters of containers."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        native.library().hc_bind(ctypes.addressof(ctypes.c_char.from_buffer(page)), mmap.PAGESIZE, 0)
    except ValueError as error:
        pytest.skip(str(error))


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


SMAPS = """\
10000000-10800000 rw-p 00000000 00:00 0
Rss:                8192 kB
AnonHugePages:      4096 kB
10800000-11000000 rw-p 00000000 00:00 0
Rss:                8192 kB
AnonHugePages:      8192 kB
20000000-20004000 rw-p 00000000 00:00 0                                  [heap]
AnonHugePages:         0 kB
"""
NUMA_MAPS = """\
10000000 prefer:0 anon=2048 dirty=2048 active=0 N0=2000 N1=48 kernelpagesize_kB=4
10800000 prefer:1 anon=2048 dirty=2048 active=0 N1=2048 kernelpagesize_kB=4
20000000 default heap anon=4 dirty=4 N0=4 kernelpagesize_kB=4
"""


@pytest.fixture
def two_nodes(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/smaps").write_text(SMAPS)
    (tmp_path / "self/numa_maps").write_text(NUMA_MAPS)
    return tmp_path


def test_pages_are_counted_by_node_policy_and_size(two_nodes):
    found = page_residency([(0x10000000, 0x11000000)], proc=two_nodes)
    assert found.bytes_of_node == {0: 2000 * 4096, 1: 2096 * 4096}
    assert (found.resident_bytes, found.huge_bytes) == (16 * MIB, 12 * MIB)
    assert found.policies == {"prefer:0": 1, "prefer:1": 1}


def test_partial_mapping_is_counted_proportionally(two_nodes):
    found = page_residency([(0x10C00000, 0x11000000), (0x20000000, 0x20001000)], proc=two_nodes)
    assert found.bytes_of_node == {0: 4096, 1: 4 * MIB}
    assert found.huge_bytes == 4 * MIB


def test_hugetlb_pages_are_counted_by_size_and_missing_proc_is_empty(two_nodes, tmp_path):
    (two_nodes / "self/numa_maps").write_text("10000000 default huge anon=4 dirty=4 N1=4 kernelpagesize_kB=2048\n")
    assert page_residency([(0x10000000, 0x10800000)], proc=two_nodes).bytes_of_node == {1: 8 * MIB}

    found = page_residency([(0, 4096)], proc=tmp_path / "none")
    assert (found.bytes_of_node, found.huge_bytes, found.policies) == ({}, None, {})


def test_remote_pages_are_counted_and_reported(two_nodes):
    local = page_residency([(0x10800000, 0x11000000)], proc=two_nodes)
    mixed = page_residency([(0x10000000, 0x10800000)], proc=two_nodes)
    found = page_placement.PagePlacement(num_tensors=1, num_bytes=16 * MIB, nodes=(0, 1), clusters=(mixed, local))
    assert found.far_bytes == 48 * 4096
    assert "node 0 8 of 8 MiB, node 1 8 of 8 MiB" in found.describe()
    assert "12 of 16 MiB in 1 tensors on huge pages" in found.describe()


@given(st.integers(0, 5000), st.integers(0, 900_000), st.integers(1, 6), st.sampled_from([4096, 1 << 16]))
def test_cluster_parts_are_page_aligned_and_match_optimizer_partition(first, length, clusters, page):
    start = 64 * first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_placement, "SYSTEM_PAGE_BYTES", page)
        parts, bound = page_placement.cluster_parts(start, start + length, clusters), []
        library = SimpleNamespace(hc_bind=lambda address, size, node: bound.append((address, size)))
        for part in parts:
            page_placement._bind(library, part, 0)
    assert (parts[0][0], parts[-1][1]) == (start, start + length)
    assert all(before[1] == after[0] and before[0] <= before[1] for before, after in pairwise(parts))
    assert all(part[1] % page == 0 or part[1] == start + length for part in parts)
    cuts = partition(length, clusters, multiple=page_placement.PAGE_BYTES)
    assert all(0 <= part[1] - (start + share.stop) < page for part, share in zip(parts, cuts, strict=True))
    assert all(address % page == size % page == 0 for address, size in bound)
    assert sum(size for _, size in bound) == max(0, (start + length) // page - -(-start // page)) * page


@needs_library
@needs_numa_maps
def test_parts_are_bound_to_cluster_nodes_and_content_is_preserved(binds, caplog):
    tensors = [torch.randn(1000, 1500), torch.randn(700, 3000), torch.randn(3)]
    before = [tensor.clone() for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in tensors]
    with caplog.at_level(logging.INFO, logger="dithc"):
        found = place_pages([*tensors, tensors[0]], nodes=(0, 0))
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert (found.num_tensors, found.num_bytes) == (3, sum(tensor.nbytes for tensor in tensors))
    assert found.far_bytes == 0
    assert "prefer:0" in page_residency([_range(tensors[0])]).policies
    for half in found.clusters:
        assert half.bytes_of_node[0] == pytest.approx(found.num_bytes / 2, rel=0.05)


@needs_library
def test_single_node_machine_binds_no_pages(caplog):
    # Separate pages, because pages of the allocator may have been bound before.
    tensor = torch.frombuffer(mmap.mmap(-1, 4 << 20), dtype=torch.float32).fill_(1.0)
    found = place_pages([tensor], nodes=())
    assert found.describe().startswith("one memory node, nothing to bind")
    assert "prefer:0" not in page_residency([_range(tensor)]).policies


@needs_library
def test_nonexistent_node_preserves_tensor_content(binds, caplog):
    tensor = torch.randn(1 << 20)
    before = tensor.clone()
    found = place_pages([tensor], nodes=(1022, 1023))
    assert torch.equal(tensor, before)
    assert not page_residency([_range(tensor)]).bytes_of_node or found.far_bytes > 0


@needs_library
@pytest.mark.parametrize(("offset", "length", "node"), [(1, 4096, 0), (0, 4095, 0), (0, 4096, -1), (0, 4096, 1024)])
def test_invalid_bind_arguments_are_rejected(offset, length, node):
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    with pytest.raises(ValueError, match="hc_bind"):
        native.library().hc_bind(ctypes.addressof(ctypes.c_char.from_buffer(page)) + offset, length, node)


def system_collapses(num_bytes: int) -> bool:
    """Return whether this many bytes of a new mapping can be put on huge pages immediately."""
    with mmap.mmap(-1, num_bytes + 2 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = b"\1" * len(memory)
        try:
            memory.madvise(MADV_COLLAPSE)
        except OSError:
            return False
    return True


@needs_library
@pytest.mark.skipif("[never]" in (HUGE.read_text() if HUGE.exists() else "[never]"), reason="huge pages are off")
def test_weights_are_placed_on_huge_pages():
    for _ in range(3):  # the system may temporarily lack huge pages
        tensor = torch.ones(8 << 20)
        found = place_pages([tensor])
        if found.huge_bytes >= 28 * MIB:
            break
    else:
        if not system_collapses(32 * MIB):
            pytest.skip("the system collapses pages by and by (before Linux 6.1), or has too few free huge pages")
    assert found.huge_bytes >= 28 * MIB
    assert bool((tensor == 1).all())


@needs_library
@needs_numa_maps
def test_pool_blocks_are_bound_to_nodes_of_the_context(binds):
    library, context = native.library(), ctypes.c_void_p()
    machine = Machine(isa_number("ref"), 2, num_clusters=2, nodes=(ctypes.c_int * 2)(0, 0))
    library.hc_context_create(ctypes.byref(machine), ctypes.byref(context))
    pool = ctypes.c_void_p()
    library.hc_pool_create(None, ctypes.byref(pool))
    block = library.hc_pool_take(pool, context, 8 * MIB)
    try:
        found = page_residency([(block, block + 8 * MIB)])
        assert set(found.policies) == {"prefer:0"}
        assert found.bytes_of_node == {0: 8 * MIB}
    finally:
        library.hc_pool_give(pool, block)
        library.hc_pool_release(pool)
        library.hc_context_destroy(context)


@needs_library
@needs_numa_maps
def test_pool_with_explicit_nodes_binds_blocks_to_nodes(binds):
    tensor = Pool(nodes=(0,)).empty((2 << 20,), torch.float32)
    found = page_residency([(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)])
    assert set(found.policies) == {"prefer:0"}
    assert found.bytes_of_node == {0: 8 * MIB}


@needs_library
@needs_numa_maps
def test_scratch_memory_is_reported_and_freed_by_trim():
    library, pages, count = native.library(), ctypes.c_void_p(), ctypes.c_int64()
    context = native.context()
    x, w, y = torch.randn(512, 256), torch.randn(256, 256), torch.empty(512, 256)
    fields = [(t.data_ptr(), *t.stride(), 0) for t in (x, w, y)]
    library.hc_gemm(context, native.GemmArguments(512, 256, 256, *fields[0], *fields[1], *fields[2], 0, 0))
    library.hc_context_scratch(context, ctypes.byref(pages), ctypes.byref(count))
    start = pages.value
    assert start
    assert 0 < page_residency([(start, start + count.value)]).resident_bytes <= count.value
    library.hc_context_trim(context)
    library.hc_context_scratch(context, ctypes.byref(pages), ctypes.byref(count))
    assert (pages.value, count.value) == (None, 0)
    library.hc_gemm(context, native.GemmArguments(512, 256, 256, *fields[0], *fields[1], *fields[2], 0, 0))
    assert torch.allclose(y, x @ w, atol=1e-3)


BLOCK_BYTES = 64 << 20
COUNTER_SLACK_BYTES = 4 << 20  # the kernel counts resident pages per CPU and adds them up in batches

PROGRAM = f"""
import numpy as np
from dithc.engine.numa import peak_rss_bytes, pss_bytes, reset_peak_rss
before, pss = peak_rss_bytes(), pss_bytes()
block = np.ones((before + {BLOCK_BYTES}) // 8)
peak = peak_rss_bytes()
assert peak >= before + {BLOCK_BYTES - COUNTER_SLACK_BYTES}
assert pss is None or pss_bytes() > pss + {BLOCK_BYTES // 2}  # None: this kernel has no smaps_rollup
del block
assert peak_rss_bytes() >= peak - {COUNTER_SLACK_BYTES}
if reset_peak_rss():
    assert peak_rss_bytes() < peak - {BLOCK_BYTES // 2}
"""


@pytest.mark.slow
def test_peak_rss_includes_touched_pages_until_reset():
    # In a separate process, because the block must be larger than the previous peak of the process.
    done = run_script(PROGRAM)
    assert done.returncode == 0, done.stderr


def test_missing_kernel_counters_return_none(tmp_path):
    assert pss_bytes(proc=tmp_path) is None
    assert available_bytes(root=tmp_path) is None
    assert reset_peak_rss(proc=tmp_path) is False
    assert peak_rss_bytes(proc=tmp_path) > 1 << 20, "of getrusage"
    assert 0 < available_bytes() < 1 << 50
