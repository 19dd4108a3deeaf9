"""Tests of the allocator mode: torch's tensors come from a pool while it is active, wherever they are freed."""

import gc
import os
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dithc.engine.memory import Pool, allocator
from tests.engine.memory import allocator_mode
from tests.engine.native.scripts import run_script

MEBI = 1 << 20
LARGE = MEBI  # elements of fp32: 4 MiB


@pytest.fixture
def pool():
    if not allocator.available():
        pytest.skip(f"torch's allocator cannot be switched: {allocator.reason()}")
    new = Pool()
    yield new
    gc.collect()
    assert not allocator_mode.is_active()
    assert new.counters().used_bytes == 0, "a tensor was leaked"


def used_bytes(pool):
    return pool.counters().used_bytes


def test_large_tensors_use_the_pool_only_in_the_mode(pool):
    outside = torch.empty(LARGE)
    with allocator_mode.allocating_from(pool):
        assert allocator_mode.is_active()
        inside, small, odd = torch.empty(LARGE), torch.empty(1000), torch.empty(LARGE + 1, dtype=torch.int8)
        assert used_bytes(pool) == 4 * MEBI + MEBI + 4096
        assert inside.data_ptr() % 4096 == 0
    later = torch.empty(LARGE)
    assert used_bytes(pool) == 4 * MEBI + MEBI + 4096
    del outside, small, later
    assert used_bytes(pool) == 4 * MEBI + MEBI + 4096
    del inside
    assert used_bytes(pool) == MEBI + 4096
    del odd
    assert used_bytes(pool) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.complex64, torch.bool])
def test_every_dtype_is_allocated_with_sufficient_bytes(pool, dtype):
    with allocator_mode.allocating_from(pool):
        tensor = torch.ones(3, 1021, 1031, dtype=dtype)
    assert used_bytes(pool) == -(-tensor.nbytes // 4096) * 4096
    assert bool((tensor == 1).all())
    del tensor


def test_autograd_tensors_use_the_pool_with_identical_values(pool):
    def step(weight, inputs):
        weight.grad = None
        torch.nn.functional.gelu(inputs @ weight).softmax(-1).square().sum().backward()
        return weight.grad

    torch.manual_seed(0)
    weight, inputs = torch.randn(700, 700, requires_grad=True), torch.randn(900, 700)
    expected = step(weight, inputs).clone()
    with allocator_mode.allocating_from(pool):
        found = step(weight, inputs)
        assert used_bytes(pool) == -(-found.nbytes // 4096) * 4096
    assert torch.equal(found, expected)
    assert pool.counters().peak_bytes >= 3 * 900 * 700 * 4
    del found
    weight.grad = None


def test_clones_and_resized_storages_are_correct_across_modes(pool):
    with allocator_mode.allocating_from(pool):
        tensor = torch.arange(LARGE, dtype=torch.float32)
        copy = tensor.clone()
    assert used_bytes(pool) == 8 * MEBI
    tensor.resize_(3 * LARGE)  # outside of the mode: torch's allocator; the block is returned
    assert used_bytes(pool) == 4 * MEBI
    assert torch.equal(tensor[:LARGE], copy)
    with allocator_mode.allocating_from(pool):
        copy.resize_(2 * LARGE)
        assert used_bytes(pool) == 8 * MEBI
        copy.untyped_storage().resize_(0)
        assert used_bytes(pool) == 0
        copy.untyped_storage().resize_(8 * LARGE)
        assert used_bytes(pool) == 8 * MEBI
        tensor.untyped_storage().resize_(0)
    del tensor, copy


def raise_after_allocation(kept):
    kept.append(torch.empty(LARGE))
    kept[0].reshape(3)


def test_modes_nest_and_end_with_an_exception(pool):
    inner = Pool()
    with allocator_mode.allocating_from(pool):
        kept = []
        with pytest.raises(RuntimeError, match="shape"), allocator_mode.allocating_from(inner):
            raise_after_allocation(kept)
        again = torch.empty(2 * LARGE)
        assert (used_bytes(inner), used_bytes(pool)) == (4 * MEBI, 8 * MEBI)
    assert not allocator_mode.is_active()
    del kept, again
    assert used_bytes(inner) == 0


def test_mode_is_thread_local_and_any_thread_can_free(pool):
    failures, passed = [], []

    def work(value):
        local = torch.empty(LARGE)  # this thread does not inherit the mode of the main thread
        with allocator_mode.allocating_from(pool):
            for i in range(40):
                tensor = torch.empty(LARGE // 2 + i).fill_(value)
                if not bool((tensor == value).all()):
                    failures.append(value)
            passed.append(tensor)
        del local

    before = allocator_mode.counters().num_served
    with allocator_mode.allocating_from(pool), ThreadPoolExecutor(4) as threads:
        list(threads.map(work, (0.0, 1.0, 2.0, 3.0)))
    assert failures == []
    assert allocator_mode.counters().num_served - before >= 4 * 40
    assert [float(tensor.mean()) for tensor in passed] == [float(tensor[0]) for tensor in passed]
    passed.clear()


def test_pool_can_be_closed_while_another_thread_uses_the_mode(pool):
    below = Pool()
    closed = Pool(next=below)
    handle, is_entered, is_closed, found = weakref.ref(closed.handle), threading.Event(), threading.Event(), []

    def work():
        with allocator_mode.allocating_from(closed):
            is_entered.set()
            is_closed.wait(600)
            before = allocator_mode.counters().num_refused
            found.extend(
                (float(torch.ones(LARGE).sum()), allocator_mode.counters().num_refused - before, handle() is not None)
            )
        found.append(handle() is None)

    thread = threading.Thread(target=work)
    thread.start()
    assert is_entered.wait(600)
    closed.close()
    below.close()
    is_closed.set()
    thread.join()
    assert found == [LARGE, 1, True, True]


def test_rejected_allocations_use_torch_allocator_and_are_counted(pool):
    full, before = Pool(budget_bytes=2 * MEBI), allocator_mode.counters()
    with allocator_mode.allocating_from(full):
        kept = torch.zeros(LARGE)
    after = allocator_mode.counters()
    assert (after.num_refused - before.num_refused, after.refused_bytes - before.refused_bytes) == (1, 4 * MEBI)
    assert (used_bytes(full), float(kept.sum())) == (0, 0.0)


def test_full_pool_spills_to_the_next_pool(pool):
    before = allocator_mode.counters().num_refused
    with allocator_mode.allocating_from(Pool(budget_bytes=6 * MEBI, next=pool)):
        kept = [torch.zeros(LARGE) for _ in range(3)]
    assert (used_bytes(pool), allocator_mode.counters().num_refused) == (8 * MEBI, before)
    kept.clear()


def test_impossible_allocation_raises_torch_error(pool):
    before = allocator_mode.counters().num_refused
    with allocator_mode.allocating_from(pool), pytest.raises(RuntimeError, match="allocate"):
        torch.empty(1 << 58, dtype=torch.uint8)
    assert allocator_mode.counters().num_refused == before + 1
    assert allocator_mode.counters().live_bytes == 0


@pytest.mark.slow
def test_forked_child_is_outside_the_mode_and_can_free(pool):
    with allocator_mode.allocating_from(pool):
        kept = torch.full((LARGE,), 1.0)
        child = os.fork()
        if child == 0:  # without OpenMP, which does not survive a fork
            signal.alarm(20)
            is_off, before = not allocator_mode.is_active(), used_bytes(pool)
            outside = torch.empty(LARGE)
            is_right = is_off and used_bytes(pool) == before and outside.numel() == LARGE
            del kept
            os._exit(0 if is_right and used_bytes(pool) == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert float(kept.sum()) == LARGE
    del kept


FORK_UNDER_LOAD = """
import os, signal, threading, torch
from dithc.engine.memory import Pool, allocator
from tests.engine.memory import allocator_mode
torch.set_num_threads(1)
pool, stop = Pool(), False
def work():
    with allocator_mode.allocating_from(pool):
        while not stop:
            torch.empty(1 << 20)
thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        torch.empty(1 << 20)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
thread.join()
kept = [torch.empty(1 << 20)]
with allocator_mode.allocating_from(pool):
    kept.append(torch.empty(1 << 20))
print("done")
"""


@pytest.mark.slow
def test_forks_during_allocation_and_tensors_live_at_exit_are_safe(pool):
    done = run_script(FORK_UNDER_LOAD)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.fixture
def without_extension(pool, monkeypatch, tmp_path):
    monkeypatch.setattr(allocator, "path_of", lambda version: tmp_path / f"none_{version}.so")
    allocator._load.cache_clear()
    yield
    allocator._load.cache_clear()


def test_mode_without_extension_is_inactive_and_logs_the_reason(without_extension, pool, caplog):
    caplog.set_level("INFO")
    with allocator_mode.allocating_from(pool):
        kept = torch.empty(LARGE)
        assert (allocator_mode.is_active(), used_bytes(pool), kept.numel()) == (False, 0, LARGE)
    assert not allocator.available()
    assert "--no-build-isolation" in allocator.reason()
    assert "torch's own tensors stay with torch's allocator" in caplog.text


def test_extension_for_a_different_torch_version_is_rejected(pool):
    path = allocator.path_of(allocator.base_version(torch.__version__))
    found = allocator.open_extension(path, version="9.9.9")
    assert found.library is None
    assert "this is 9.9.9" in found.reason


def test_damaged_extension_file_is_reported_as_reason(pool, tmp_path):
    path = tmp_path / "_torch_allocator_2_13_0.so"
    path.write_bytes(b"not a library")
    assert "is damaged" in allocator.open_extension(path, version="2.13.0").reason


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.0.dev20260101+cpu"])
def test_extension_file_name_contains_the_base_version(version):
    assert allocator.path_of(allocator.base_version(version)).name == "_torch_allocator_2_13_0.so"
