"""Tests of exhausted memory: the error names requested, available memory and fitting settings."""

import logging

import pytest

from dithc.core.logging import UserError, out_of_memory
from dithc.train.memory_tiers import TrainingMemory
from dithc.train.pipeline import memory_check

GIB = 1 << 30


def error_text(job, monkeypatch, *, free, error, images=64, **run):
    monkeypatch.setattr(memory_check, "free_bytes", lambda: free)
    memory = TrainingMemory()
    with (
        pytest.raises(UserError) as caught,
        memory_check.allocation_guard(job(**run), tokens=256, images=images, memory=memory),
    ):
        raise error
    return str(caught.value)


REFUSALS = [
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 3221225472 bytes."), "3.00 GiB"),
    (
        MemoryError("pool: no memory for (4, 8) of torch.float32; Counters(used_bytes=1)"),
        "a tensor (4, 8) of torch.float32",
    ),
    (MemoryError(), "memory"),
    (MemoryError("Unable to allocate 7.45 GiB for an array"), "7.45 GiB"),
    (OSError(12, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
    (RuntimeError("std::bad_alloc"), "std::bad_alloc"),
]


@pytest.mark.parametrize(("error", "requested"), REFUSALS)
def test_out_of_memory_error_reports_request_and_fitting_settings(job, monkeypatch, error, requested):
    assert out_of_memory.requested_memory(error) == requested
    text = error_text(job, monkeypatch, free=2 * GIB, error=error, model={"preset": "DiT-S/2"})
    assert f"got:      allocation refused by the system: {requested}" in text
    assert "2.00 GiB before its start" in text
    for fix in ("`micro_batch_size: ", "`activation_checkpointing: block` with `micro_batch_size: ", "fast_memory_gib"):
        assert fix in text


def test_suggested_batch_is_below_the_failed_size_and_grows_with_memory(job, monkeypatch):
    def largest(free, images=64):
        text = error_text(job, monkeypatch, free=free, images=images, error=MemoryError(), model={"preset": "DiT-S/2"})
        found = text.partition("set `micro_batch_size: ")[2].partition("`")[0]
        return int(found) if found else 0

    assert largest(int(1.3 * GIB)) == 0  # the state alone is 1.1 GiB
    assert 0 < largest(2 * GIB) < 64
    assert largest(64 * GIB) == 32  # the rule is wrong here: half of the failed size
    assert largest(64 * GIB, images=1) == 0


def test_unrelated_errors_pass_the_allocation_guard_unchanged(job, monkeypatch):
    monkeypatch.setattr(memory_check, "free_bytes", lambda: GIB)
    for error in (RuntimeError("shape mismatch"), OSError(2, "No such file"), ValueError("x"), KeyError("x")):
        assert out_of_memory.requested_memory(error) is None
        with (
            pytest.raises(type(error)),
            memory_check.allocation_guard(job(), tokens=16, images=8, memory=TrainingMemory()),
        ):
            raise error


def test_run_exceeding_available_memory_logs_a_warning_before_training(job, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    monkeypatch.setattr(memory_check, "free_bytes", lambda: GIB)
    with (
        TrainingMemory() as memory,
        memory_check.allocation_guard(job(model={"preset": "DiT-S/2"}), tokens=256, images=64, memory=memory),
    ):
        pass
    assert "and only 1.00 GiB are available: the system may kill it" in caplog.text
