"""Tensors of the pool are ordinary tensors whose memory comes back, from any thread, when the last of them is gone."""

import threading

import pytest
import torch

from dithc import native
from dithc.memory import Pool
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
