"""Tests of gradient buckets and communication costs: buckets hold every tensor once and can be sharded."""

import gc
import weakref
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from dithc.engine.comm.gradients import Reducer
from dithc.engine.comm.gradients.buckets import (
    ALIGNMENT,
    BUCKETS,
    MAX_BUCKET_BYTES,
    MIN_BUCKET_BYTES,
    SHARE_ELEMENTS,
    arrange,
)
from dithc.engine.comm.traffic import CommMeter, Exposure, union_seconds

SIZES = (1, 5000, 1024, 1025, 70_000, 3, 999_999, 2048)
ORDER = (7, 0, 6, 3, 1, 5, 2, 4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 64, 100])
@pytest.mark.parametrize("bucket_bytes", [None, 1, 20_000, 1 << 30])
def test_each_tensor_is_in_one_bucket_of_equal_shares(ranks, bucket_bytes):
    found = arrange(SIZES, ORDER, ranks=ranks, bucket_bytes=bucket_bytes)
    assert [number for bucket in found.buckets for number in bucket.members] == list(ORDER)
    end = 0
    for bucket in found.buckets:
        assert bucket.start >= end
        end = bucket.start
        for number in bucket.members:
            start = found.starts[number]
            assert start >= end, "tensors overlap"
            assert start % ALIGNMENT == 0
            end = start + SIZES[number]
        assert end <= bucket.stop <= found.length
        shares = [bucket.share(rank, ranks) for rank in range(ranks)]
        assert shares[0].start == bucket.start
        assert shares[-1].stop == bucket.stop
        assert all(left.stop == right.start for left, right in pairwise(shares))
        assert {share.stop - share.start for share in shares} == {shares[0].stop - shares[0].start}
        assert all(share.start % SHARE_ELEMENTS == 0 for share in shares)
        end = bucket.stop
        assert (
            bucket.stop - bucket.start - sum(-(-SIZES[n] // ALIGNMENT) * ALIGNMENT for n in bucket.members) < ranks * 16
        )


def test_bucket_ends_before_exceeding_the_size_limit():
    page = ALIGNMENT * 4
    equal = arrange((1024,) * 5, range(5), bucket_bytes=2 * page)
    assert [bucket.members for bucket in equal.buckets] == [(0, 1), (2, 3), (4,)]
    large = arrange((1024, 10_240, 1024), range(3), bucket_bytes=2 * page)
    assert [bucket.members for bucket in large.buckets] == [(0,), (1,), (2,)]
    assert (arrange((), ()).buckets, arrange((), ()).length) == ((), 0)


@pytest.mark.parametrize(
    ("total_bytes", "bucket_bytes"),
    [(8 << 20, MIN_BUCKET_BYTES), (64 << 20, (64 << 20) // BUCKETS), (1 << 30, MAX_BUCKET_BYTES)],
)
def test_bucket_size_is_a_32nd_of_the_total_within_bounds(total_bytes, bucket_bytes):
    count = total_bytes // (16 * ALIGNMENT)
    sizes = {4 * (bucket.stop - bucket.start) for bucket in arrange((4 * ALIGNMENT,) * count, range(count)).buckets}
    assert sizes == {bucket_bytes}


def test_union_of_intervals_counts_overlaps_once():
    assert union_seconds([(1.0, 3.0), (2.0, 4.0), (2.5, 2.6), (6.0, 7.0)]) == 4.0
    assert union_seconds([(6.0, 7.0), (1.0, 3.0)]) == 3.0
    assert union_seconds([(1.0, 2.0), (None, None)]) is None
    assert union_seconds([]) is None


def test_meter_sums_bytes_and_intervals_and_resets_on_take():
    meter = CommMeter()
    meter.sent(10)
    meter.sent(5)
    for span in ((1.0, 2.0), (1.5, 4.0)):
        meter.wait(SimpleNamespace(wait=lambda: None, begun=span[0], ended=span[1]))
    exposure = meter.take()
    assert (exposure.comm_bytes, exposure.communication_seconds) == (15, 3.0)
    assert exposure.exposed_seconds > 0
    assert meter.take() == Exposure()
    meter.wait(SimpleNamespace(wait=lambda: None))  # of a backend without times
    assert meter.take().overlap_fraction is None


@pytest.mark.parametrize(
    ("exposed", "communication", "overlap"), [(1.0, 4.0, 0.75), (0.0, 2.0, 1.0), (3.0, 2.0, 0.0), (1.0, None, None)]
)
def test_overlap_is_the_fraction_of_hidden_communication(exposed, communication, overlap):
    exposure = Exposure(exposed, 1, communication)
    assert exposure.overlap_fraction == overlap
    assert ("overlap_fraction" in exposure.metrics()) == (overlap is not None)
    assert exposure.metrics()["exposed_seconds"] == exposed


def test_reducer_and_gradients_are_freed_with_their_model(monkeypatch):
    """A hook of torch that refers to the reducer would keep both forever."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    model = torch.nn.Linear(4, 4)
    reducer = Reducer(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    freed = [weakref.ref(reducer), weakref.ref(reducer.buffer)]
    del model, reducer
    gc.collect()
    assert [one() for one in freed] == [None, None]
