"""Tests of concatenation in shared memory against messages: any size, type and dimension, in sequence."""

import pickle

import pytest

from dithc.core.logging import UserError
from dithc.engine.comm.process_group.shm_collectives import rank_gone
from dithc.engine.native.signatures import PROCESS_GONE, PROCESS_STOPPED, STATUS_TEXTS, TIMED_OUT
from dithc.sample.parallel.shared_buffers import lost_rank_error
from tests.ranks import needs_launcher, run_on_ranks

PROGRAM = """
import random, sys, time
import torch
from dithc.engine.comm import init_distributed
from dithc.engine.cost.sampling import ParallelDegrees
from dithc.sample.parallel import SamplingGroup
from dithc.sample.parallel.rank_set import RankSet
from dithc.sample.parallel.shared_buffers import SharedGather
size = int(sys.argv[2])
with init_distributed(size) as group:
    by_memory = SamplingGroup.of(group, ParallelDegrees(windows=size), [list(range(size))]).rows
    assert by_memory.shared_gather is not None, "these ranks are on one node"
    by_message = RankSet(by_memory.rank, size, by_memory.group)
    draw = random.Random(7)  # the same on all
    late = random.Random(group.rank)
    wrong = 0
    for turn in range(300):
        lengths = [draw.randrange(4) for _ in range(size)]
        dim, beside = draw.randrange(3), [draw.randrange(1, 9 if turn % 50 else 200) for _ in range(2)]
        type_ = draw.choice([torch.float32, torch.bfloat16, torch.float64, torch.int64])
        part = torch.randint(-99, 99, (*beside[:dim], lengths[group.rank], *beside[dim:])).to(type_)
        part = part.transpose(0, 2).contiguous().transpose(0, 2)  # with gaps
        if late.random() < 0.1:
            time.sleep(0.002)
        gathered = by_memory.all_gather(part, lengths, dim=dim)
        time.sleep(0.001 * (late.random() < 0.1))  # other ranks continue and write
        wrong += not torch.equal(gathered, by_message.all_gather(part, lengths, dim=dim)) or gathered.dtype != type_
    # Without messages in between: a rank that is ahead must not overwrite memory that other ranks still read.
    for turn in range(3000):
        gathered = by_memory.all_gather(torch.full((64,), float(turn * size + group.rank)), [64] * size)
        ends = gathered.view(size, 64)[:, ::63].flatten().tolist()
        wrong += ends != [float(turn * size + rank) for rank in range(size) for _ in "ab"]
    if group.rank == 0:
        print(sum(group.gather_objects(wrong)))
    else:
        group.gather_objects(wrong)
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.sampled("several ranks")
@needs_launcher
@pytest.mark.parametrize("ranks", [2, 3])
def test_shared_memory_concatenation_equals_message_exchange(ranks, tmp_path) -> None:
    done = run_on_ranks(PROGRAM, ranks=ranks, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "0"  # number of unequal tensors


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (PROCESS_GONE, "rank 3 has ended"),
        (PROCESS_STOPPED, "rank 3 is stopped by a signal"),
        (TIMED_OUT, "rank 3 has not come in time"),
    ],
)
def test_lost_rank_error_has_four_lines_without_function_names(status: int, message: str) -> None:
    error = lost_rank_error(ValueError(f"hc_exchange_barrier in hc_sequence: {STATUS_TEXTS[status]}"), "rank 3")
    title, got, expected, fix = str(error).split("\n")
    assert title.startswith("rank 3 ")
    assert got == f"  got:      {message}"
    assert "all ranks" in expected
    assert "log" in fix
    assert error.status == 1, "not an input error"


def test_lost_rank_error_is_unchanged_after_pickling() -> None:
    error = rank_gone("rank 3 has ended")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.status) == (UserError, str(error), 1)
    assert str(again).count("a rank is lost") == 1


LEAVING = """
import gc
import torch.distributed as dist
from dithc.engine import native
from dithc.engine.comm.process_group import SharedSegment
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
library = native.library()
detached, detach = [], library.hc_exchange_detach
def counted(handle):
    detached.append(handle.value)
    detach(handle)
library.hc_exchange_detach = counted
def made():
    return SharedSegment(100, over=dist.group.WORLD, timeout_seconds=1.0)
kept = made()
for _ in range(3):
    made().barrier(library)
gc.collect()
kept.barrier(library)  # the kernels still hold it
assert len(detached) == 3 and kept._handle not in detached, detached
del kept
gc.collect()
assert len(detached) == 4 and all(detached), detached
assert not [line for line in open("/proc/self/maps") if "/dithc-" in line]
"""


@pytest.mark.mpi
@needs_launcher
def test_unreferenced_shared_memory_is_released_once() -> None:
    done = run_on_ranks(LEAVING, ranks=1)
    assert done.returncode == 0, done.stderr[-2000:]
