"""Tests of tiers: they overflow in order, keep their budgets, and leave no files or memory."""

import errno
import gc
import logging
import os
import signal
from pathlib import Path

import pytest
import torch

from dithc.core.logging import UserError
from dithc.engine import native
from dithc.engine.hardware import Limits, discover_machine
from dithc.engine.hardware.machine import MemoryTier as MachineTier
from dithc.engine.memory import Pool, Tiers, TierSpec, file_tier, output_pool, tier_specs
from dithc.engine.memory import tiers as module
from dithc.engine.numa import page_residency

MEBI = 1 << 20
GIB = 1 << 30

needs_library = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")


def memory(budget: int | None, name: str = "fast") -> TierSpec:
    return TierSpec(name=name, kind="ddr", budget_bytes=budget)


def file(folder: Path, size: int = 16 * MEBI) -> TierSpec:
    return TierSpec(name="file", kind="file", budget_bytes=size, folder=folder)


@pytest.fixture
def tiers(tmp_path):
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    chain = Tiers([memory(8 * MEBI), file(tmp_path)])
    yield chain
    chain.close()


def floats(tiers: Tiers, mebi: int) -> torch.Tensor:
    return tiers.fast.empty((mebi * MEBI // 4,), torch.float32)


def test_full_tier_spills_to_the_next_tier_and_last_tier_raises(tiers):
    kept = [floats(tiers, 4).fill_(i) for i in range(6)]
    assert [tiers.tier_of(tensor) for tensor in kept] == [tiers.fast] * 2 + [tiers.slow] * 4
    assert [float(tensor.mean()) for tensor in kept] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(MemoryError):
        floats(tiers, 4)
    assert [tier.counters().spills for tier in tiers] == [5, 1]
    assert [tier.free_bytes for tier in tiers] == [0, 0]
    del kept
    assert [tier.counters().used_bytes for tier in tiers] == [0, 0]


def test_tier_lookup_identifies_only_tensors_and_views_of_the_tier(tiers):
    inside, outside = tiers.slow.empty((3, 4), torch.bfloat16), torch.empty(MEBI)
    assert tiers.tier_of(inside[1:]) is tiers.slow
    assert not tiers.fast.holds(inside)
    assert tiers.tier_of(outside) is None
    assert tiers.tier_of(torch.empty(0)) is None


def test_file_descriptor_offsets_match_the_mapping(tiers):
    assert tiers.fast.mapping() is None
    tensor = tiers.slow.empty((1000,), torch.float32).fill_(2)
    address, size, descriptor, _ = tiers.slow.mapping()
    offset = tensor.data_ptr() - address
    assert (size, os.fstat(descriptor).st_size) == (16 * MEBI, 16 * MEBI)
    assert os.pread(descriptor, 4000, offset) == tensor.numpy().tobytes()
    os.pwrite(descriptor, torch.full((1000,), 5.0).numpy().tobytes(), offset)
    assert float(tensor.mean()) == 5.0


def test_huge_page_mode_matches_the_system(tiers):
    assert tiers.slow.huge_pages == "file"
    mode = discover_machine().huge_pages.transparent
    assert tiers.fast.huge_pages == ("none" if mode in ("never", "absent") else "transparent")
    assert tiers.fast.counters().used_bytes == 0


@needs_library
def test_reserved_huge_pages_are_used_if_the_budget_fits():
    free = sum(free for size, _, free in discover_machine().huge_pages.pools if size == 2 * MEBI)
    if free < 4:
        pytest.skip(f"the administrator reserved {free} free huge pages of 2 MiB here, 4 are needed")
    tiers = Tiers([memory(8 * MEBI)])
    start, size = tiers.fast.pool.range
    assert (tiers.fast.counters().backed_bytes, page_residency([(start, start + size)]).reserved_bytes) == (0, 0)
    kept = floats(tiers, 8)
    assert page_residency([(start, start + size)]).reserved_bytes == 8 * MEBI, "only the team has touched them"
    assert kept.fill_(1).mean() == 1
    assert tiers.fast.huge_pages == "hugetlb"
    counters = tiers.fast.counters()
    assert (counters.backed_bytes, counters.misses) == (8 * MEBI, 1)


def test_fast_tier_is_the_output_pool_between_serve_and_release(tiers):
    before, other = output_pool(), Pool()
    tiers.serve()
    module.set_output_pool(other)
    tiers.release()
    assert module.set_output_pool(before) is other
    for end in (tiers.release, tiers.close):
        tiers.serve()
        tiers.serve()
        assert output_pool() is tiers.fast.pool
        end()
        end()
        assert output_pool() is before


def test_tensors_outlive_closed_tiers_with_a_debug_message(tmp_path, tiers, caplog):
    kept = floats(tiers, 4).fill_(7)
    with caplog.at_level(logging.DEBUG, logger="dithc"):
        tiers.close()
    levels = {record.getMessage(): record.levelno for record in caplog.records}
    assert levels[f"memory tier fast: {4 * MEBI} bytes are still in use"] == logging.DEBUG
    assert float(kept.mean()) == 7
    assert tiers.slow.mapping() is None


@needs_library
def test_deleted_tiers_close_the_descriptor_and_leave_no_file(tmp_path):
    num_open = len(os.listdir("/proc/self/fd"))
    tiers = Tiers([memory(8 * MEBI), file(tmp_path)])
    kept = tiers.slow.empty((MEBI,), torch.float32)
    assert os.listdir(tmp_path) == []
    del tiers
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == num_open
    assert float(kept.fill_(4).mean()) == 4  # the mapping keeps the file


@needs_library
def test_forked_child_cannot_allocate_from_the_file(tiers):
    kept = tiers.slow.empty((MEBI,), torch.float32).fill_(1)
    child = os.fork()
    if child == 0:  # without tensors, because OpenMP does not survive a fork
        signal.alarm(20)
        block = native.library().hc_pool_take(tiers.slow.pool._pool, native.context(), MEBI)
        os._exit(0 if block is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert float(kept.mean()) == 1


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda folder: folder / "missing", "no such folder"),
        (lambda folder: ((folder / "file").write_text("") and None) or folder / "file", "not a folder"),
    ],
    ids=["missing", "no folder"],
)
@needs_library
def test_invalid_folder_is_rejected_with_fix(tmp_path, make, got):
    with pytest.raises(UserError, match=rf"file tier in .*\n  got: +{got}\n.*\n  fix: "):
        Tiers([memory(None), file(make(tmp_path))])


@needs_library
def test_file_larger_than_the_disk_is_rejected_without_using_space(tmp_path):
    free = file_tier.shutil.disk_usage(tmp_path).free
    with pytest.raises(UserError, match=r"got: +[\d.]+ GiB free .*\n  expected: 1048576.00 GiB"):
        Tiers([file(tmp_path, 1 << 50)])
    assert abs(file_tier.shutil.disk_usage(tmp_path).free - free) < GIB


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EFBIG])
@needs_library
def test_disk_errors_raise_user_errors_without_leaking_descriptors(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    num_open = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(file_tier.os, "open" if number in (errno.EROFS, errno.EACCES) else "posix_fallocate", refuse)
    is_full = number in (errno.ENOSPC, errno.EDQUOT)
    with pytest.raises(UserError, match=r"got: +[\d.]+ GiB free" if is_full else os.strerror(number)):
        Tiers([file(tmp_path)])
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_file_is_unlinked_immediately_without_o_tmpfile_support(tmp_path, monkeypatch):
    plain = os.open

    def refuse(path, flags, *arguments, **settings):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no O_TMPFILE")
        return plain(path, flags, *arguments, **settings)

    monkeypatch.setattr(file_tier.os, "open", refuse)
    descriptor = file_tier.create(tmp_path, 2 * MEBI)
    assert (os.fstat(descriptor).st_size, os.listdir(tmp_path)) == (2 * MEBI, [])
    assert os.fstat(descriptor).st_blocks * 512 >= 2 * MEBI
    os.close(descriptor)


def test_file_tier_on_tmpfs_logs_a_warning(caplog):
    folder = Path("/dev/shm")
    if not folder.is_dir() or not file_tier._is_memory(folder):
        pytest.skip("/dev/shm is not a tmpfs here")
    os.close(file_tier.create(folder, 2 * MEBI))
    assert "stores files in memory" in caplog.text


@pytest.mark.parametrize(
    "spec",
    [
        TierSpec(name="x", kind="file", budget_bytes=None, folder=Path("/tmp")),
        TierSpec(name="x", kind="file", budget_bytes=4 * MEBI),
        TierSpec(name="x", kind="file", budget_bytes=MEBI, folder=Path("/tmp")),
        TierSpec(name="x", kind="ddr", budget_bytes=-1),
        None,
    ],
)
def test_invalid_tier_specification_is_rejected(spec):
    with pytest.raises(UserError, match="expected"):
        Tiers([spec] if spec else [])


def test_missing_library_rejects_budgets_and_allows_a_single_tier(monkeypatch):
    monkeypatch.setattr(module.native, "library", lambda: None)
    with pytest.raises(UserError, match="C library, which implements tiers"):
        Tiers([memory(MEBI)])
    tiers = Tiers([memory(None)])
    assert tiers.fast.empty((3,), torch.float32).shape == (3,)
    assert (tiers.fast.free_bytes, tiers.fast.huge_pages, tiers.slow) == (None, "none", None)


class Node:
    """Machine with the fields that the rule reads."""

    def __init__(self, *tiers, limit=None):
        self.tiers = tuple(MachineTier(kind=k, nodes=n, memory_bytes=b, reason="") for k, n, b in tiers)
        self.limits = Limits(allowed_cpus=(), cpu_quota=None, memory_limit_bytes=limit, memory_available_bytes=None)


DDR = ("ddr", (0, 1), 64 * GIB)
HBM = ("on-package", (2, 3), 16 * GIB)
FILE = {"spill_folder": Path("/disk"), "file_bytes": GIB}


@pytest.mark.parametrize(
    ("tiers", "settings", "expected"),
    [
        ([DDR], {}, [("ddr", None, ())]),
        ([], {}, [("memory", None, ())]),
        ([DDR], {"fast_budget_bytes": GIB}, [("budgeted ddr", GIB, ()), ("ddr", None, ())]),
        ([DDR], {"fast_budget_bytes": GIB} | FILE, [("budgeted ddr", GIB, ()), ("file", GIB, ())]),
        ([DDR], FILE, [("ddr", 48 * GIB, ()), ("file", GIB, ())]),
        ([DDR], {"ranks": 4} | FILE, [("ddr", 12 * GIB, ()), ("file", GIB, ())]),
        ([DDR, HBM], {}, [("on-package", 15 * GIB, (2, 3)), ("ddr", None, (0, 1))]),
        ([DDR, HBM], {"ranks": 4}, [("on-package", 15 * GIB // 4, (2, 3)), ("ddr", None, (0, 1))]),
        ([DDR, HBM], {"fast_budget_bytes": GIB}, [("budgeted on-package", GIB, (2, 3)), ("ddr", None, (0, 1))]),
        ([DDR, HBM], FILE, [("on-package", 15 * GIB, (2, 3)), ("ddr", 48 * GIB, (0, 1)), ("file", GIB, ())]),
        ([("expander", (4,), GIB), DDR], {}, [("ddr", 48 * GIB, (0, 1)), ("expander", None, (4,))]),
    ],
)
def test_chain_follows_from_machine_and_settings(tiers, settings, expected):
    specs = tier_specs(Node(*tiers), **settings)
    assert [(spec.name, spec.budget_bytes, spec.nodes) for spec in specs] == expected


def test_memory_budget_above_a_file_stays_below_the_cgroup_limit():
    assert [spec.budget_bytes for spec in tier_specs(Node(DDR, limit=4 * GIB), **FILE)] == [3 * GIB, GIB]


def test_budget_above_fastest_tier_capacity_is_rejected():
    with pytest.raises(
        UserError, match=r"8\.00 GiB for each of 4 rank[\s\S]*at most 4\.00 GiB.*16\.00 GiB of on-package"
    ):
        tier_specs(Node(DDR, HBM), fast_budget_bytes=8 * GIB, ranks=4)
    assert tier_specs(Node(DDR, HBM), fast_budget_bytes=4 * GIB, ranks=4)[0].budget_bytes == 4 * GIB


def test_file_tier_below_memory_of_unknown_size_is_rejected():
    with pytest.raises(UserError, match=r"unknown size[\s\S]*fast_memory_gib"):
        tier_specs(Node(), **FILE)
