"""Exchange of the C library: several ranks in one process against float64, order, limits and missing ranks."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dithc.engine import native
from dithc.engine.comm.process_group.shm_collectives import COLLECTIVES, ChunkLayout, _CollectiveArguments
from tests.kernels.test_vector_ops import ISAS, TYPES, Out, put, random

pytestmark = pytest.mark.skipif(not ISAS, reason=f"C kernels: {native.load_library().reason}")
F32, BF16 = torch.float32, torch.bfloat16
SLOTS, SLOT_BYTES = 2, 1024
COMBINATIONS = {0: torch.sum, 1: torch.prod, 2: torch.amax, 3: torch.amin}
GONE, LATE = -8, -9
SECOND = 1_000_000_000


class Ranks:
    """Handles of all ranks on one segment in this process."""

    def __init__(self, ranks: int, isa: str):
        self.library = native.library()
        size = ctypes.c_int64()
        self.library.hc_exchange_bytes(ranks, SLOTS, SLOT_BYTES, ctypes.byref(size))
        self.memory = np.zeros(size.value + 4096, dtype=np.uint8)
        self.address = (self.memory.ctypes.data + 4095) // 4096 * 4096
        self.handles = []
        for rank in range(ranks):
            handle = ctypes.c_void_p()
            context = native.context(isa=isa, num_threads=1)
            self.library.hc_exchange_attach(self.address, context, rank, ranks, SLOTS, SLOT_BYTES, ctypes.byref(handle))
            self.handles.append(handle.value)
        self.other = ctypes.c_int(-1)

    def cut(self, count, wire):
        """Return consecutive pieces of a chunk, one per rank."""
        line = 64 // wire.itemsize
        length = -(-count // len(self.handles) // line) * line
        return ChunkLayout([min(rank * length, count) for rank in range(len(self.handles))], length, limit=count)

    def put(self, rank, number, x, wire, timeout=0):
        pieces = self.cut(x.numel(), wire)
        return self.library.hc_exchange_put(
            *(self.handles[rank], number, pieces.address, *put(x), TYPES[wire], timeout, ctypes.byref(self.other))
        )

    def combine(self, rank, number, x, wire, op=0, scale=1.0, timeout=0, out=None, keep=True):
        """Combine a piece with this rank's values from x. Without `keep` the result is only in `out`, and the chunk
        ends.
        """
        part, pieces = ctypes.c_void_p(), self.cut(x.numel(), wire)
        address, kind = (None, TYPES[x.dtype]) if out is None else put(out)
        status = self.library.hc_exchange_combine(
            *(self.handles[rank], number, pieces.address, *put(x), TYPES[wire], op, scale, address, kind),
            *(ctypes.byref(part) if keep else None, timeout, ctypes.byref(self.other)),
        )
        if status == 0 and keep:
            self.library.hc_exchange_publish(self.handles[rank], number)
        return status

    def run_whole(self, rank, operation, *, rounds):
        address = ctypes.addressof(operation)
        return self.library.hc_exchange_collective(self.handles[rank], address, rounds, 0, ctypes.byref(self.other))

    def get(self, rank, number, out, wire, timeout=0):
        pieces = self.cut(int(np.prod(out.shape)), wire)
        return self.library.hc_exchange_get(
            *(self.handles[rank], number, pieces.address, TYPES[wire], 1),
            *(out.address(), TYPES[out.dtype], timeout, ctypes.byref(self.other)),
        )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("dtype", "wire"), [(F32, F32), (F32, BF16), (BF16, BF16)])
def test_combinations_equal_float64_for_every_length(isa, ranks, dtype, wire):
    group = Ranks(ranks, isa)
    number = 0
    for op, reduce in COMBINATIONS.items():
        for count in (0, 1, 15, 17, 64, ranks * (SLOT_BYTES // ranks // 64 * 64 // wire.itemsize)):
            local = [random((count,), dtype, seed=rank) for rank in range(ranks)]
            assert all(group.put(rank, number, local[rank], wire) == 0 for rank in range(ranks))
            assert all(group.combine(rank, number, local[rank], wire, op, 0.5) == 0 for rank in range(ranks))
            sent = torch.stack([x.to(wire).double() for x in local])
            exact = 0.5 * reduce(sent, 0)
            limit = (ranks + 1) * (2.0**-24 * 0.5 * sent.abs().sum(0) if op == 0 else 2.0**-24 * exact.abs())
            limit = limit + (2.0**-8 * exact.abs() * 1.01 if BF16 in (wire, dtype) else 0)
            answers = []
            for rank in range(ranks):
                out = Out((count,), dtype, offset=1)
                assert group.get(rank, number, out, wire) == 0
                answers.append(out.tensor())
                assert ((answers[-1].double() - exact).abs() <= limit + 2.0**-133).all()
            assert all(torch.equal(answer, answers[0]) for answer in answers)
            number += 1
            # The combining rank stores the result over its own values in an array: the same bits.
            assert all(group.put(rank, number, local[rank], wire) == 0 for rank in range(ranks))
            pieces = group.cut(count, wire)
            for rank in range(ranks):
                kept = local[rank].clone()
                piece = kept[pieces.offsets[rank] :]
                assert group.combine(rank, number, kept, wire, op, 0.5, out=piece, keep=False) == 0
                span = slice(pieces.offsets[rank], pieces.offsets[rank] + pieces.count(rank))
                assert torch.equal(kept[span], answers[0][span])
            number += 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("wire", [F32, BF16])
@pytest.mark.parametrize("count", [0, 1, 100, 5000])
def test_interleaved_multichunk_collectives_return_exact_results(isa, ranks, wire, count):
    group = Ranks(ranks, isa)
    part, chunk = SLOT_BYTES // ranks // 64 * 64 // wire.itemsize, 0
    for kind in COLLECTIVES:
        shares = 1 if kind == "all_reduce" else ranks  # unit of `count`
        x = [random((count * (ranks if kind == "reduce_scatter" else 1),), seed=rank).float() for rank in range(ranks)]
        sent = [piece.to(wire).float() for piece in x]
        total = (torch.stack(sent).sum(0) * 0.5).to(wire).float()
        expected = {
            "all_reduce": [total] * ranks,
            "reduce_scatter": total.split(count) if count else [total] * ranks,
            "all_gather": [torch.cat(sent)] * ranks,
        }[kind]
        out = [torch.full((count * ranks if kind == "all_gather" else count,), torch.nan) for _ in range(ranks)]
        if kind == "all_reduce":
            out = x
        elif kind == "all_gather" and wire is F32:  # moved bits; this rank's part is already there
            for rank in range(ranks):
                out[rank][rank * count :][:count] = x[rank]
        stride = part * ranks if shares == 1 else part
        done = [(ctypes.c_int64 * 3)() for _ in range(ranks)]
        operations = [
            _CollectiveArguments(
                *(
                    x[rank].data_ptr(),
                    out[rank].data_ptr(),
                    ctypes.addressof(done[rank]),
                    count,
                    stride,
                    chunk % (1 << 32),
                ),
                *(COLLECTIVES[kind], TYPES[F32], TYPES[wire], 0, 0.5),
            )
            for rank in range(ranks)
        ]
        pending = list(range(ranks))
        while pending:
            before = [list(piece) for piece in done]
            pending = [rank for rank in pending if group.run_whole(rank, operations[rank], rounds=2) == LATE]
            assert not pending or before != [list(piece) for piece in done], "all ranks wait"
        for rank in range(ranks):
            assert torch.equal(out[rank], expected[rank]), (kind, rank)
        chunk += -(-count // stride)


def test_chunk_numbers_wrap_and_slots_in_use_are_not_reused():
    group = Ranks(2, ISAS[-1])
    library = group.library
    for number in range(SLOTS):
        assert group.put(0, number, torch.ones(4), F32) == 0
    assert group.put(0, SLOTS, torch.ones(4), F32) == LATE
    assert group.other.value == 1
    solo = Ranks(1, ISAS[-1])
    assert [solo.put(0, number, torch.ones(4), F32) for number in range(SLOTS + 1)] == [0] * SLOTS + [LATE]  # not read
    assert group.combine(0, 0, torch.ones(4), F32) == LATE  # rank 1 has put no data yet
    lines = np.frombuffer(group.memory, dtype=np.uint8)
    first = group.address - group.memory.ctypes.data
    counters = lines[first : first + 128].view(np.uint32).reshape(2, 16)
    counters[:, :3] = 2**32 - 1
    for number in (2**32 - 1, 0, 1):
        for rank in range(2):
            assert group.put(rank, number, torch.full((4,), 1.0 + rank), F32) == 0
        for rank in range(2):
            assert group.combine(rank, number, torch.full((4,), 1.0 + rank), F32) == 0
        for rank in range(2):
            out = Out((4,))
            assert group.get(rank, number, out, F32) == 0
            assert out.tensor().tolist() == [3.0] * 4
    library.hc_exchange_detach(group.handles[0])


def test_dead_process_is_identified_and_late_process_times_out():
    group = Ranks(2, ISAS[-1])
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    first = group.address - group.memory.ctypes.data
    pids = np.frombuffer(group.memory, dtype=np.uint8)[first : first + 128].view(np.int32).reshape(2, 16)[:, 4]
    assert list(pids) == [os.getpid()] * 2
    group.put(0, 0, torch.ones(4), F32)
    assert group.combine(0, 0, torch.ones(4), F32, timeout=SECOND // 20) == LATE
    pids[1] = child.pid
    assert group.combine(0, 0, torch.ones(4), F32, timeout=20 * SECOND) == GONE
    assert group.other.value == 1


@pytest.mark.parametrize(
    "change",
    [
        {"count": SLOT_BYTES // 8 + 1},  # of two pieces in a slot
        {"count": -1},
        {"type": 7},
        {"x": None},
    ],
)
def test_invalid_put_arguments_are_rejected_without_writing(change):
    group = Ranks(2, ISAS[0])
    values = {"count": 4, "type": 0, "x": torch.ones(4).data_ptr()} | change
    pieces = ChunkLayout([0, 4], values["count"])
    with pytest.raises(ValueError, match="hc_exchange_put"):
        group.library.hc_exchange_put(
            *(group.handles[0], 0, pieces.address, values["x"], 0, values["type"], 0, ctypes.byref(group.other))
        )
    # the slots still contain zeros, so nothing was written
    assert not np.frombuffer(group.memory, dtype=np.uint8)[8192:].any()
