"""Tensors of the pool are ordinary tensors whose memory comes back, from any thread, when the last of them is gone."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
from random import Random

import pytest
import torch

from dithc import native
from dithc.memory import Pool, residence
from dithc.memory import pool as module

MEBI = 1 << 20


@pytest.fixture
def pool():
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load().reason}")
    return Pool()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(MEBI,), (3, 1000, 1001), (1, 1, 1, 1024, 1024)])
def test_tensor_is_contiguous_aligned_and_writable(pool, shape, dtype):
    tensor = pool.empty(shape, dtype)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (torch.Size(shape), dtype, True)
    assert tensor.data_ptr() % 4096 == 0
    assert float(tensor.fill_(2.0).double().mean()) == 2.0


def test_block_is_used_again_when_the_last_view_is_gone(pool):
    tensor = pool.empty((MEBI,), torch.float32)
    address, view = tensor.data_ptr(), tensor[10:].view(2, -1)
    del tensor
    other = pool.empty((MEBI,), torch.float32)
    assert other.data_ptr() != address
    del view
    assert pool.empty((MEBI,), torch.float32).data_ptr() == address
    counters = pool.counters()
    assert (counters.hits, counters.misses) == (1, 2)


def test_counters_follow_what_is_in_use(pool):
    tensor = pool.empty((MEBI,), torch.float32)
    assert pool.counters().used_bytes >= 4 * MEBI
    del tensor
    assert (pool.counters().used_bytes, pool.counters().idle_bytes >= 4 * MEBI) == (0, True)
    pool.trim()
    assert pool.counters().idle_bytes == 0


def test_small_and_strange_tensors_are_torchs_own(pool):
    kept = [pool.empty((100,), torch.float32), pool.empty((MEBI,), torch.int64), pool.empty((0, 5), torch.float32)]
    assert [tensor.shape for tensor in kept] == [(100,), (MEBI,), (0, 5)]
    assert pool.counters().misses == 0


def test_two_tensors_never_share_memory_across_threads(pool):
    wrong = []

    def work(value):
        for _ in range(50):
            tensor = pool.empty((MEBI // 2,), torch.float32).fill_(value)
            if not bool((tensor == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert pool.counters().used_bytes == 0


def test_gradients_and_moves_work_as_for_any_tensor(pool):
    tensor = pool.empty((MEBI,), torch.float32).fill_(3.0).requires_grad_()
    (tensor * 2).sum().backward()
    assert bool((tensor.grad == 2).all())
    assert torch.equal(tensor.detach().clone(), tensor.detach())


def test_without_the_library_it_is_torchs_allocator(monkeypatch):
    monkeypatch.setattr(module.native, "library", lambda: None)
    pool = Pool()
    assert pool.empty((MEBI,), torch.float32).shape == (MEBI,)
    assert pool.counters() == module.Counters(0, 0, 0, 0, 0)
    pool.trim()


@pytest.fixture
def blocks(pool):
    """Takes and gives by bytes and address, which tensors of the pool cannot below a megabyte."""
    library, context = native.library(), native.context()
    return (
        lambda bytes_: library.hc_pool_take(pool._pool, context, bytes_),
        lambda address: library.hc_pool_give(pool._pool, address),
    )


def test_neighbours_that_are_given_back_serve_one_larger_block(pool, blocks):
    take, give = blocks
    first, second, third, last = (take(MEBI) for _ in range(4))
    assert [second - first, third - second, last - third] == [MEBI] * 3
    for order in ((first, second, third), (third, second, first), (first, third, second)):
        for address in order:
            give(address)
        assert take(3 * MEBI) == first
        give(first)
        assert [take(MEBI) for _ in range(3)] == [first, second, third]
    assert pool.counters().misses == 2  # one for each huge page that four blocks of half of one touch


def test_smallest_free_block_that_holds_is_taken_and_the_lowest_of_equals(blocks):
    take, give = blocks
    sizes = (3, 1, 2, 1, 2, 1, 4, 1)
    places = [take(size * MEBI) for size in sizes]
    for place in places[::2]:
        give(place)
    assert take(2 * MEBI) == places[2]
    assert take(2 * MEBI - 4096) == places[4]
    assert take(2 * MEBI) == places[0]
    assert take(4 * MEBI) == places[6]


def test_sizes_are_rounded_to_pages_and_not_to_huge_pages(pool, blocks):
    take, _ = blocks
    one, other = take(4097), take(0)
    assert (other - one, pool.counters().used_bytes) == (8192, 12288)


def test_pool_stays_near_the_most_that_was_in_use(pool, blocks):
    """Every second block of growing sizes is kept, so that no idle one ever holds the next."""
    take, give = blocks
    for size in range(2, 40, 2):
        gone, _ = take(size * MEBI), take(2 * MEBI)
        give(gone)
        counters = pool.counters()
        assert counters.used_bytes + counters.idle_bytes <= counters.peak_bytes * 9 / 8
    assert counters.peak_bytes == (38 + 19 * 2) * MEBI


def test_memory_of_a_part_that_went_back_to_the_system_comes_again_as_zeros(pool, blocks):
    take, give = blocks
    kept, gone, above = take(2 * MEBI), take(8 * MEBI), take(2 * MEBI)
    for address, bytes_ in ((kept, 2 * MEBI), (gone, 8 * MEBI), (above, 2 * MEBI)):
        ctypes.memset(address, 7, bytes_)
    give(gone)
    pool.trim()
    assert pool.counters().idle_bytes == 0
    assert take(8 * MEBI) == gone
    assert ctypes.string_at(gone, 8 * MEBI).count(0) == 8 * MEBI
    assert ctypes.string_at(kept, 2 * MEBI).count(7) == ctypes.string_at(above, 2 * MEBI).count(7) == 2 * MEBI


def test_trimmed_memory_is_no_longer_resident(pool):
    tensor = pool.empty((16 * MEBI,), torch.float32).fill_(1.0)
    place = (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
    if (before := residence([place]).resident_bytes) == 0:
        pytest.skip("the kernel keeps no numa_maps")
    assert before == 64 * MEBI
    del tensor
    pool.trim()
    assert residence([place]).resident_bytes == 0


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_a_random_sequence_never_overlap_and_keep_their_content(pool, blocks, seed):
    take, give = blocks
    random, live, start = Random(seed), {}, take(4096)
    give(start)
    for turn in range(1500):
        if live and (len(live) > 60 or random.random() < 0.45):
            address = random.choice(list(live))
            bytes_, mark = live.pop(address)
            for end in (address, address + bytes_ - 8):
                assert ctypes.c_int64.from_address(end).value == mark
            give(address)
        else:
            bytes_ = random.choice((8, 4096, 5000, 70_000, MEBI, 2 * MEBI, 2 * MEBI + 1, 9 * MEBI))
            address = take(bytes_)
            assert address % 4096 == 0
            for end in (address, address + bytes_ - 8):
                ctypes.c_int64.from_address(end).value = turn
            live[address] = bytes_, turn
        if turn % 100 == 0:
            spans = sorted((address, address + bytes_) for address, (bytes_, _) in live.items())
            assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
            assert pool.counters().used_bytes == sum(-(-bytes_ // 4096) * 4096 for bytes_, _ in live.values())
            if turn % 300 == 0:
                pool.trim()
    for address in live:
        give(address)
    assert pool.counters().used_bytes == 0
    pool.trim()
    assert pool.counters().idle_bytes == 0
    assert take(512 * MEBI) == start  # all of it is one free block again


def test_thousands_of_blocks_find_their_places_again(pool, blocks):
    take, give = blocks
    places = [take(8192) for _ in range(3000)]
    assert len(set(places)) == 3000
    for place in places[::2]:
        give(place)  # 1,500 free blocks that join nobody
    assert sorted(take(8192) for _ in range(1500)) == places[::2]
    for place in places:
        give(place)
    assert (take(3000 * 8192), pool.counters().used_bytes) == (places[0], 3000 * 8192)


def test_address_that_is_no_block_is_left_alone(pool, blocks):
    take, give = blocks
    address = take(MEBI)
    give(address + 4096)
    give(None)
    assert pool.counters().used_bytes == MEBI
    give(address)
    give(address)
    assert pool.counters().used_bytes == 0


@pytest.mark.parametrize("bytes_", [1 << 46, (1 << 63) - 1, -1])
def test_what_the_system_has_not_is_refused_and_nothing_is_lost(pool, blocks, bytes_):
    take, _ = blocks
    before = take(MEBI)
    assert take(bytes_) is None
    assert (pool.counters().used_bytes, take(MEBI) - before) == (MEBI, MEBI)


def test_child_of_a_fork_uses_its_own_copy(pool, blocks):
    take, give = blocks
    kept = take(4 * MEBI)
    ctypes.memset(kept, 1, 4 * MEBI)
    child = os.fork()
    if child == 0:  # no tensors here: OpenMP does not survive a fork
        signal.alarm(20)
        other = take(4 * MEBI)
        ctypes.memset(other, 2, 4 * MEBI)
        right = other != kept and ctypes.string_at(kept, 4 * MEBI).count(1) == 4 * MEBI
        ctypes.memset(kept, 3, 4 * MEBI)
        give(kept)
        give(other)
        pool.trim()
        os._exit(0 if right and pool.counters().idle_bytes == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ctypes.string_at(kept, 4 * MEBI).count(1) == 4 * MEBI


LIMITED = """
import resource, torch
resource.setrlimit(resource.RLIMIT_AS, ({limit}, resource.RLIM_INFINITY))
from dithc.memory import Pool
pool = Pool()
kept = [pool.empty((1 << 20,), torch.float32).fill_(i) for i in range({count})]
assert [float(tensor.sum()) for tensor in kept] == [float(i << 20) for i in range({count})]
print(pool.reserved_bytes, pool.counters())
kept[1] = None
assert pool.counters().used_bytes == {count} - 1 << 22
kept.clear()
pool.trim()
print(pool.counters().used_bytes + pool.counters().idle_bytes)
"""


@pytest.mark.parametrize(("limit", "count"), [(64 << 30, 4), (6 << 30, 500)])
def test_under_a_limit_on_addresses_it_says_so_and_serves_what_the_system_has(pool, limit, count):
    """Four blocks lie within the quarter of the limit that is reserved; of 500 the last ones are mapped one by one."""
    script = LIMITED.format(limit=limit, count=count)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    reserved, left = int(done.stdout.split()[0]), done.stdout.split()[-1]
    assert (reserved % (2 * MEBI), left) == (0, "0")
    assert reserved <= limit // 4
    assert "the address space of this process is limited" in done.stderr


def test_without_a_range_every_block_is_mapped_and_unmapped(pool, monkeypatch, caplog):
    monkeypatch.setattr(module.Pool, "reserved_bytes", 0)
    Pool()
    assert "the system refused a range of addresses" in caplog.text
