"""Streamed passes over a file tier change the same bits as passes in place."""

import errno
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dithc.engine import hcops, native
from dithc.engine.memory import CopyEngine, StreamedTensors, streamed_tensors
from tests.engine.automem.managed_models import MIB, two_tiers, used_bytes

pytestmark = pytest.mark.skipif(native.library() is None, reason="memory tiers require the C library")
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "ema_decay": 0.9}


@pytest.fixture
def tiers(request, tmp_path):
    """Return a fast tier, of 32 MiB without a parameter, above a file; at the end both must be empty."""
    tiers = two_tiers(getattr(request, "param", 32), folder=tmp_path)
    yield tiers
    assert used_bytes(tiers) == [0, 0]
    tiers.close()


@pytest.fixture
def copies(tiers):
    copies = CopyEngine(tiers)
    yield copies
    copies.close()


def columns_of(allocate: Callable[[int], Tensor]) -> list[list[Tensor]]:
    """Return weights, gradients, moments and averages, a small tensor and tensors that do not end with a piece."""
    generator = torch.Generator().manual_seed(0)
    sizes = 300, 300_000, 1_048_576, 700_001
    return [[allocate(size).copy_(torch.rand(size, generator=generator)) for size in sizes] for _ in range(5)]


def update(columns: list[list[Tensor]], step: int) -> None:
    weights, gradients, first, second, averages = columns
    hcops.optimizer.adamw(weights, gradients, first, second, averages=averages, step=step, **SETTINGS)


@pytest.mark.parametrize("tiers", [128], indirect=True)
@pytest.mark.parametrize("is_full", [False, True], ids=["streamed", "no memory for pieces"])
def test_streamed_update_has_the_bits_of_an_update_in_memory(tiers, copies, monkeypatch, is_full):
    monkeypatch.setattr(streamed_tensors, "PIECE_BYTES", MIB)
    occupied = tiers.fast.empty((127 * MIB if is_full else 0,), torch.uint8)
    streamed = StreamedTensors(tiers, copies)
    expected = columns_of(torch.empty)
    found = columns_of(lambda size: tiers.slow.empty((size,), torch.float32))
    versions = [[tensor._version for tensor in column] for column in found]
    for step in (1, 2):
        update(expected, step)
        parts = lengths = 0
        for part in streamed.parts(found, read_only={1}):
            update(part, step)
            parts, lengths = parts + 1, lengths + len(part[0])
    assert (parts, lengths) == ((1, 4) if is_full else (10, 10))
    del part, occupied
    for ours, theirs, before in zip(found, expected, versions, strict=True):
        assert all(map(torch.equal, ours, theirs))
        is_gradient = theirs is expected[1]
        assert all((tensor._version > version) != is_gradient for tensor, version in zip(ours, before, strict=True))
    loaded, offloaded = copies.counters().loaded_bytes, copies.counters().offloaded_bytes
    assert (loaded > 0, offloaded * 5) == (not is_full, loaded * 4)


def test_tensors_in_memory_pass_in_one_part(tiers, copies):
    columns = columns_of(torch.empty)
    assert [part is columns for part in StreamedTensors(tiers, copies).parts(columns)] == [True]


@pytest.mark.parametrize("tiers", [128], indirect=True)
def test_failing_disk_is_an_error_of_the_update(tiers, copies):
    found = columns_of(lambda size: tiers.slow.empty((size,), torch.float32))
    copies.inject_faults(error=errno.EIO, after_bytes=3 * MIB)
    with pytest.raises(OSError, match=r"[Ee]rror"):
        list(StreamedTensors(tiers, copies).parts(found))
    copies.drain()
