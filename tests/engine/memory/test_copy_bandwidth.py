"""Tests of measured copy rates: of a single stream, and of the disk instead of the page cache."""

import os

import pytest

from dithc.engine import native
from dithc.engine.memory import copy_bandwidth
from dithc.engine.memory.copy_engine import CopyEngine

needs_library = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")


@pytest.fixture(autouse=True)
def no_measurements(monkeypatch):
    """Reset all measurements."""
    monkeypatch.setattr(copy_bandwidth, "_file_rates", {})
    copy_bandwidth.memory_rate.cache_clear()
    yield
    copy_bandwidth.memory_rate.cache_clear()


@needs_library
def test_memory_rate_is_measured_on_a_single_thread(monkeypatch):
    recorded = []

    class RecordingEngine(CopyEngine):
        def close(self):
            recorded.append(self.counters())
            super().close()

    monkeypatch.setattr(copy_bandwidth, "CopyEngine", RecordingEngine)
    rate = copy_bandwidth.memory_rate(())
    (counters,) = recorded
    assert counters.blocking_bytes == 0
    assert counters.loaded_bytes == copy_bandwidth.ROUNDS * copy_bandwidth.PROBE_BYTES
    assert rate >= counters.loaded_bytes / counters.busy_seconds["load"]  # the best of them


def test_file_rates_bypass_the_page_cache_and_are_cached(tmp_path, monkeypatch):
    calls = []

    def watched(name):
        original = getattr(os, name)

        def call(*arguments):
            calls.append(name)
            return original(*arguments)

        return call

    for name in ("pwrite", "fdatasync", "posix_fadvise", "preadv"):
        monkeypatch.setattr(os, name, watched(name))
    size = 6 << 20
    with (tmp_path / "file").open("w+b", buffering=0) as file:
        rates = copy_bandwidth.file_rates(tmp_path, file.fileno(), size)
        again = copy_bandwidth.file_rates(tmp_path, file.fileno(), size)
    assert calls == 3 * ["pwrite", "pwrite", "fdatasync"] + 3 * ["posix_fadvise", "preadv", "preadv"]
    assert (tmp_path / "file").stat().st_size == size
    assert min(rates) > 0
    assert again is rates


def test_slow_disk_writes_reduce_only_the_write_rate(tmp_path, monkeypatch):
    original = os.fdatasync

    def slow(file):
        original(file)
        copy_bandwidth.sleep(0.05)

    monkeypatch.setattr(os, "fdatasync", slow)
    size = 1 << 20
    with (tmp_path / "file").open("w+b", buffering=0) as file:
        rates = copy_bandwidth.file_rates(tmp_path, file.fileno(), size)
    assert rates.write <= size / 0.05
    assert rates.read > rates.write
