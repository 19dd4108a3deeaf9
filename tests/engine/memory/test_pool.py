"""Tests of the pool: ordinary tensors, with memory reused after the last one is freed on any thread."""

import ctypes
import os
import signal
from random import Random

import pytest
import torch

from dithc.core.logging import UserError
from dithc.engine import native
from dithc.engine.memory import Pool
from dithc.engine.memory import pool as module
from dithc.engine.numa import page_residency
from tests.engine.native.scripts import run_script

MEBI = 1 << 20


@pytest.fixture
def pool():
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    return Pool()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(MEBI,), (3, 1000, 1001), (1, 1, 1, 1024, 1024)])
def test_tensor_is_contiguous_aligned_and_writable(pool, shape, dtype):
    tensor = pool.empty(shape, dtype)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (torch.Size(shape), dtype, True)
    assert tensor.data_ptr() % 4096 == 0
    assert float(tensor.fill_(2.0).double().mean()) == 2.0


def test_block_is_reused_after_the_last_view_is_freed(pool):
    tensor = pool.empty((MEBI,), torch.float32)
    address, view = tensor.data_ptr(), tensor[10:].view(2, -1)
    del tensor
    other = pool.empty((MEBI,), torch.float32)
    assert other.data_ptr() != address
    del view
    assert pool.empty((MEBI,), torch.float32).data_ptr() == address
    small = pool.empty((100,), torch.float32)  # from torch
    counters = pool.counters()
    assert (pool.holds(small.data_ptr()), counters.hits, counters.misses) == (False, 1, 2)


OTHER_TYPES = [torch.int64, torch.bool, torch.uint8, torch.float16, torch.complex64, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", OTHER_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(3,), (5, 7), (), (1,) * 12])
def test_any_dtype_and_size_uses_the_pool_without_a_size_minimum(pool, dtype, shape):
    tensor = pool.empty(shape, dtype, floor_bytes=0)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (torch.Size(shape), dtype, True)
    assert pool.holds(tensor.data_ptr())
    assert pool.counters().used_bytes == 4096
    assert tensor.copy_(torch.ones(shape)).to(torch.complex128).sum() == tensor.numel()
    del tensor
    assert pool.counters().used_bytes == 0


def test_pool_without_library_uses_torch_allocator(monkeypatch):
    monkeypatch.setattr(module.native, "library", lambda: None)
    pool = Pool()
    assert pool.empty((MEBI,), torch.float32).shape == (MEBI,)
    assert pool.counters() == module.PoolCounters()
    pool.trim()


@pytest.fixture
def blocks(pool):
    """Return functions that allocate and free by bytes and address, which tensors below a megabyte do not allow."""
    library, context = native.library(), native.context()
    return (
        lambda bytes_: library.hc_pool_take(pool._pool, context, bytes_),
        lambda address: library.hc_pool_give(pool._pool, address),
    )


def test_freed_neighbors_merge_into_a_larger_block(pool, blocks):
    take, give = blocks
    first, second, third, last = (take(MEBI) for _ in range(4))
    assert [second - first, third - second, last - third] == [MEBI] * 3
    for order in ((first, second, third), (third, second, first), (first, third, second)):
        for address in order:
            give(address)
        assert take(3 * MEBI) == first
        give(first)
        assert [take(MEBI) for _ in range(3)] == [first, second, third]
    assert pool.counters().misses == 2  # one per huge page that four blocks of half a page touch


def test_smallest_sufficient_block_at_the_lowest_address_is_used(blocks):
    take, give = blocks
    sizes = (3, 1, 2, 1, 2, 1, 4, 1)
    places = [take(size * MEBI) for size in sizes]
    for place in places[::2]:
        give(place)
    assert take(2 * MEBI) == places[2]
    assert take(2 * MEBI - 4096) == places[4]
    assert take(2 * MEBI) == places[0]
    assert take(4 * MEBI) == places[6]


def test_pool_memory_stays_near_peak_use(pool, blocks):
    """Every second block of growing sizes is kept, so that no idle block fits the next request."""
    take, give = blocks
    for size in range(2, 40, 2):
        freed, _ = take(size * MEBI), take(2 * MEBI)
        give(freed)
        counters = pool.counters()
        assert counters.used_bytes + counters.idle_bytes <= counters.peak_bytes * 9 / 8
    assert counters.peak_bytes == (38 + 19 * 2) * MEBI


def test_trimmed_memory_is_zero_when_reused(pool, blocks):
    take, give = blocks
    kept, freed, last = take(2 * MEBI), take(8 * MEBI), take(2 * MEBI)
    for address, bytes_ in ((kept, 2 * MEBI), (freed, 8 * MEBI), (last, 2 * MEBI)):
        ctypes.memset(address, 7, bytes_)
    give(freed)
    pool.trim()
    assert pool.counters().idle_bytes == 0
    assert take(8 * MEBI) == freed
    assert ctypes.string_at(freed, 8 * MEBI).count(0) == 8 * MEBI
    assert ctypes.string_at(kept, 2 * MEBI).count(7) == ctypes.string_at(last, 2 * MEBI).count(7) == 2 * MEBI


@pytest.mark.parametrize("bytes_", [1 << 46, (1 << 63) - 1, -1])
def test_impossible_sizes_are_rejected_without_leaks(pool, blocks, bytes_):
    take, _ = blocks
    before = take(MEBI)
    assert take(bytes_) is None
    assert (pool.counters().used_bytes, take(MEBI) - before) == (MEBI, MEBI)


def test_forked_child_uses_a_private_copy(pool, blocks):
    take, give = blocks
    kept = take(4 * MEBI)
    ctypes.memset(kept, 1, 4 * MEBI)
    child = os.fork()
    if child == 0:  # without tensors, because OpenMP does not survive a fork
        signal.alarm(20)
        other = take(4 * MEBI)
        ctypes.memset(other, 2, 4 * MEBI)
        is_intact = other != kept and ctypes.string_at(kept, 4 * MEBI).count(1) == 4 * MEBI
        ctypes.memset(kept, 3, 4 * MEBI)
        give(kept)
        give(other)
        pool.trim()
        os._exit(0 if is_intact and pool.counters().idle_bytes == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ctypes.string_at(kept, 4 * MEBI).count(1) == 4 * MEBI


LIMITED = """
import resource, torch
resource.setrlimit(resource.RLIMIT_AS, ({limit}, resource.RLIM_INFINITY))
from dithc.engine.memory import Pool
pool = Pool()
kept = [pool.empty((1 << 20,), torch.float32).fill_(i) for i in range({count})]
assert [float(tensor.sum()) for tensor in kept] == [float(i << 20) for i in range({count})]
print(pool.range[1], pool.counters())
kept[1] = None
assert pool.counters().used_bytes == {count} - 1 << 22
kept.clear()
pool.trim()
print(pool.counters().used_bytes + pool.counters().idle_bytes)
"""


@pytest.mark.sampled
@pytest.mark.parametrize(("limit", "count"), [(64 << 30, 4), (6 << 30, 500)])
@pytest.mark.slow
def test_address_space_limit_is_logged_and_pool_still_allocates(pool, limit, count):
    """Four blocks fit into the reserved quarter of the limit; of 500 blocks the last ones are mapped separately."""
    done = run_script(LIMITED.format(limit=limit, count=count))
    assert done.returncode == 0, done.stderr
    reserved, remaining = int(done.stdout.split()[0]), done.stdout.split()[-1]
    assert (reserved % (2 * MEBI), remaining) == (0, "0")
    assert reserved <= limit // 4
    assert "the address space of this process is limited" in done.stderr


def test_idle_memory_is_reclaimed_before_spilling():
    pool = Pool(budget_bytes=16 * MEBI)
    low, freed = pool.empty((MEBI,), torch.float32), pool.empty((2 * MEBI,), torch.float32)
    kept = pool.empty((MEBI // 2,), torch.float32)
    del freed  # 8 MiB of idle memory, too small for 10 MiB
    assert pool.counters().idle_bytes == 8 * MEBI
    large = pool.empty((10 * MEBI // 4,), torch.float32).fill_(1)
    counters = pool.counters()
    assert (counters.backed_bytes, counters.spills, counters.peak_backed_bytes) == (16 * MEBI, 0, 16 * MEBI)
    del low, kept, large


def test_last_pool_rejects_requests_above_budget_with_details():
    pool = Pool(budget_bytes=4 * MEBI, next=Pool(budget_bytes=2 * MEBI))
    with pytest.raises(MemoryError, match=r"no memory for \(2097152,\).*budget_bytes=4194304"):
        pool.empty((2 * MEBI,), torch.float32)
    assert (pool.counters().spills, pool.next.counters().spills) == (1, 1)
    assert Pool(budget_bytes=0, next=pool).empty((MEBI,), torch.float32).numel() == MEBI


def test_start_peak_resets_peak_bytes_but_not_peak_backed_bytes():
    pool = Pool(budget_bytes=16 * MEBI)
    freed = pool.empty((3 * MEBI,), torch.float32)
    del freed
    pool.trim()
    kept = pool.empty((MEBI,), torch.float32)
    pool.start_peak()
    counters = pool.counters()
    assert (counters.peak_bytes, counters.backed_bytes, counters.peak_backed_bytes) == (4 * MEBI, 4 * MEBI, 12 * MEBI)
    del kept


@pytest.mark.slow
def test_resident_memory_never_exceeds_the_budget(pool):
    """Compare with the system's count of resident pages, over random blocks that are all written."""
    budget, random, kept = 24 * MEBI, Random(1), []
    pool = Pool(budget_bytes=budget, next=pool)
    start, size = pool.range
    if page_residency([(start, start + size)]).huge_bytes is None:
        pytest.skip("the kernel keeps no smaps")
    for _ in range(60):
        if kept and random.random() < 0.4:
            kept.pop(random.randrange(len(kept)))
        kept.append(
            pool.empty((random.choice((70_000, MEBI // 4, MEBI, 2 * MEBI)),), torch.float32, floor_bytes=0).fill_(1)
        )
        assert page_residency([(start, start + size)]).resident_bytes <= pool.counters().backed_bytes <= budget
    assert pool.counters().spills > 5


def test_tensors_outlive_deleted_pools_and_free_memory_at_the_end():
    below = Pool()
    pool = Pool(budget_bytes=4 * MEBI, next=below)
    kept = [pool.empty((MEBI,), torch.float32).fill_(i) for i in range(3)]
    place = kept[0].data_ptr(), kept[0].data_ptr() + kept[0].nbytes
    del pool, below
    assert [float(tensor.mean()) for tensor in kept] == [0.0, 1.0, 2.0]
    kept.clear()
    assert page_residency([place]).resident_bytes == 0


def test_closed_pool_returns_torch_tensors_and_preserves_live_tensors(pool):
    kept = pool.empty((MEBI,), torch.float32).fill_(3)
    pool.close()
    pool.close()
    assert pool.empty((MEBI,), torch.float32).numel() == MEBI
    assert (pool.counters(), float(kept.mean())) == (module.PoolCounters(), 3.0)


REFUSED = """
import resource, torch
from dithc.engine.memory import Pool
last = Pool()
pool = Pool(budget_bytes=1 << 30, next=Pool(file=open_file(), budget_bytes=64 << 20))
pool.empty((1 << 20,), torch.float32)
in_use = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (in_use + (32 << 20), resource.RLIM_INFINITY))
kept = [pool.empty((1 << 20,), torch.float32).fill_(i) for i in range(16)]
assert [float(tensor.mean()) for tensor in kept] == [float(i) for i in range(16)]
print(pool.counters().spills, pool.next.counters().num_blocks)
"""


@pytest.mark.slow
def test_failed_system_allocations_spill_to_the_next_pool(pool, tmp_path):
    """With a limit on the data segment of the process; the file does not count as data."""
    opening = f"""
import os
def open_file():
    file = os.open({str(tmp_path)!r}, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.posix_fallocate(file, 0, 64 << 20)
    return file
"""
    done = run_script(opening + REFUSED, OMP_NUM_THREADS="2")  # the stack of a second thread counts as data
    assert done.returncode == 0, done.stderr
    spills, in_file = map(int, done.stdout.split())
    assert spills == in_file > 8


@pytest.mark.parametrize("budget", [None, 0, 2 * MEBI - 1])
def test_file_smaller_than_a_huge_page_is_rejected(pool, tmp_path, budget):
    with open(tmp_path / "file", "w+b") as file, pytest.raises(ValueError, match="hc_pool_create"):
        Pool(file=file.fileno(), budget_bytes=budget)


@pytest.mark.parametrize(("setting", "expected"), [("off", False), ("on", True)])
def test_output_pool_variable_selects_pool_or_torch_allocator(pool, monkeypatch, setting, expected):
    monkeypatch.setenv("DITHC_OUTPUT_POOL", setting)
    monkeypatch.setattr(module, "_output_pool", [])
    tensor = module.output_pool().empty((MEBI,), torch.float32)
    assert module.output_pool().holds(tensor.data_ptr()) == expected
    assert module.set_output_pool(Pool.off()).counters().used_bytes == expected * 4 * MEBI
    assert not module.output_pool().holds(module.output_pool().empty((MEBI,), torch.float32).data_ptr())


def test_invalid_output_pool_variable_is_rejected(monkeypatch):
    monkeypatch.setenv("DITHC_OUTPUT_POOL", "maybe")
    monkeypatch.setattr(module, "_output_pool", [])
    with pytest.raises(UserError, match=r"got: +maybe\n  expected: on or off"):
        module.output_pool()
