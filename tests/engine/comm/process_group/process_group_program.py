"""Rank program for tests of the process group: `process_group_program.py <scene>`; prints one line on success."""

import json
import logging
import os
import shutil
import sys
import tempfile
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

if "DITHC_TEST_NODES" in os.environ:  # emulates ranks on several nodes
    os.environ["DITHC_NODE_NAME"] = (
        f"node{MPI.COMM_WORLD.rank * int(os.environ['DITHC_TEST_NODES']) // MPI.COMM_WORLD.size}"
    )

from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dithc.engine import hcops
from dithc.engine.comm import CommConfig
from dithc.engine.comm.gradients.reducer import Reducer
from dithc.engine.comm.mpi import MpiCommunicator
from dithc.engine.comm.process_group import islands
from dithc.engine.comm.process_group.backend import NAME, set_timeout

if os.environ.get("DITHC_TEST_NODES") == "4":  # emulates two islands: nodes 0 and 2, nodes 1 and 3
    islands.measure_rates = lambda channel, **_: [
        4.0 if (i - channel.rank) % 2 == 0 else 1.0 for i in range(channel.size)
    ]

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
REDUCED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8)
MOVED = (*REDUCED, torch.bool, torch.complex64)
LENGTHS = (0, 1, 7, 4099, 300_001)


def values(length: int, dtype: torch.dtype, rank: int) -> Tensor:
    """Return small integers with sums that every type represents exactly."""
    return ((torch.arange(length) * 7 + rank * 3) % 5 + 1).to(dtype)


def values_of_all_ranks(length: int, dtype: torch.dtype) -> Tensor:
    return torch.stack([values(length, dtype, rank) for rank in range(SIZE)])


def reductions() -> None:
    for dtype in REDUCED:
        for length in LENGTHS:
            everything = values_of_all_ranks(length, torch.float64)
            expected = {
                dist.ReduceOp.SUM: everything.sum(0),
                dist.ReduceOp.PRODUCT: everything.prod(0),
                dist.ReduceOp.MIN: everything.amin(0),
                dist.ReduceOp.MAX: everything.amax(0),
            }
            if dtype.is_floating_point:
                expected[dist.ReduceOp.AVG] = everything.mean(0)
            for op, wanted in expected.items():
                got = values(length, dtype, RANK)
                dist.all_reduce(got, op=op)
                limit = 2**-7 if op == dist.ReduceOp.AVG and dtype.itemsize == 2 else 1e-6
                torch.testing.assert_close(got.double(), wanted, rtol=limit, atol=0)
            root = values(length, dtype, RANK)
            dist.reduce(root, dst=SIZE - 1)
            wanted = everything.sum(0) if RANK == SIZE - 1 else values(length, torch.float64, RANK)
            assert torch.equal(root.double(), wanted)
    grid = values(12, torch.float32, RANK).view(3, 4).t()  # not contiguous
    dist.all_reduce(grid)
    assert torch.equal(grid, values_of_all_ranks(12, torch.float32).sum(0).view(3, 4).t())
    bits = torch.tensor([1 << RANK])
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.item() == (1 << SIZE) - 1
    flags = torch.tensor([RANK == 0, True, False])
    dist.all_reduce(flags, op=dist.ReduceOp.MIN)
    assert flags.tolist() == [SIZE == 1, True, False]
    several = [values(5, torch.float64, RANK), values(3, torch.float64, RANK)]
    dist.all_reduce_coalesced(several)
    assert torch.equal(several[0], values_of_all_ranks(5, torch.float64).sum(0))
    assert torch.equal(several[1], values_of_all_ranks(3, torch.float64).sum(0))


def movements() -> None:
    for dtype in MOVED:
        for length in LENGTHS:
            own, everything = values(length, dtype, RANK), values_of_all_ranks(length, dtype)
            sent = own.clone()
            dist.broadcast(sent, SIZE - 1)
            assert torch.equal(sent, everything[SIZE - 1])
            outputs = [torch.empty_like(own) for _ in range(SIZE)]
            dist.all_gather(outputs, own)
            assert all(torch.equal(output, wanted) for output, wanted in zip(outputs, everything, strict=True))
            together = own.new_empty(SIZE * length)
            dist.all_gather_single(together, own)
            assert torch.equal(together, everything.view(-1))
            gathered = [torch.empty_like(own) for _ in range(SIZE)] if RANK == 0 else None
            dist.gather(own, gathered)
            assert gathered is None or torch.equal(torch.stack(gathered), everything)
            mine = torch.empty_like(own)
            dist.scatter(mine, list(everything) if RANK == 0 else None)
            assert torch.equal(mine, own)
    uneven = [torch.zeros(rank + 1) for rank in range(SIZE)]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK)))
    assert [tensor.tolist() for tensor in uneven] == [[float(rank)] * (rank + 1) for rank in range(SIZE)]
    inputs = [torch.full((rank + 1,), 10.0 * RANK + rank) for rank in range(SIZE)]
    outputs = [torch.zeros(RANK + 1) for _ in range(SIZE)]
    dist.all_to_all(outputs, inputs)
    assert [tensor.tolist() for tensor in outputs] == [[10.0 * rank + RANK] * (RANK + 1) for rank in range(SIZE)]
    single = torch.zeros(SIZE * (RANK + 1))
    dist.all_to_all_single(single, torch.cat(inputs), [RANK + 1] * SIZE, [rank + 1 for rank in range(SIZE)])
    assert torch.equal(single, torch.cat(outputs))
    parts = torch.zeros(2)
    dist.reduce_scatter_single(parts, torch.arange(2.0 * SIZE) + RANK)
    assert torch.equal(parts, torch.arange(2.0 * SIZE)[2 * RANK : 2 * RANK + 2] * SIZE + sum(range(SIZE)))
    shards = [torch.full((rank + 2,), float(RANK)) for rank in range(SIZE)]
    own_shard = torch.zeros(RANK + 2)
    dist.reduce_scatter(own_shard, shards)
    assert torch.equal(own_shard, torch.full((RANK + 2,), float(sum(range(SIZE)))))


def shards() -> None:
    """A shard of a sum has the bits of the sum, in place or not; the gathered shards are the sum."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for length in (0, 1, 513, 300_001):
            generator = torch.Generator().manual_seed(RANK)
            own = torch.randn(SIZE * length, generator=generator).to(dtype)
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
                total, shard, inside = own.clone(), own.new_empty(length), own.clone()
                work = dist.all_reduce(total, op=op, async_op=True)
                work.wait()
                assert work.begun <= work.ended
                place = slice(RANK * length, (RANK + 1) * length)
                dist.reduce_scatter_single(shard, own, op=op)
                assert torch.equal(shard, total[place])
                dist.reduce_scatter_single(inside[place], inside, op=op)
                assert torch.equal(inside[place], total[place])
                dist.all_gather_single(inside, inside[place])
                assert torch.equal(inside, total)
    elsewhere = torch.arange(4.0 * SIZE) + RANK
    before = elsewhere.clone()
    other = (RANK + 1) % SIZE  # the output is at the position of another rank's shard
    dist.reduce_scatter_single(elsewhere[4 * other : 4 * other + 4], elsewhere)
    wanted = torch.arange(4.0 * SIZE)[4 * RANK : 4 * RANK + 4] * SIZE + sum(range(SIZE))
    assert torch.equal(elsewhere[4 * other : 4 * other + 4], wanted)
    assert (elsewhere == before).sum() >= 4 * SIZE - 4


def messages() -> None:
    objects: list[object] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": rank} for rank in range(SIZE)]
    box = [RANK]
    dist.broadcast_object_list(box, src=SIZE - 1)
    assert box == [SIZE - 1]
    dist.barrier()
    if SIZE > 1:  # both send before they receive, with a collective in between: neither may wait for the other
        other = RANK ^ 1 if (RANK ^ 1) < SIZE else RANK
        received, total = torch.zeros(200_000), torch.ones(1000)
        sending = dist.isend(torch.full((200_000,), float(RANK)), other) if other != RANK else None
        reducing = dist.all_reduce(total, async_op=True)
        if sending is not None:
            dist.recv(received, other)
            sending.wait()
            assert torch.equal(received, torch.full_like(received, float(other)))
        reducing.wait()
        assert torch.equal(total, torch.full_like(total, float(SIZE)))
    MpiCommunicator.MAX_ELEMENTS = 1000  # emulates counts of ten bits
    long = values(4099, torch.float32, RANK)
    dist.broadcast(long, 0)
    assert torch.equal(long, values(4099, torch.float32, 0))
    double = values(4099, torch.float64, RANK)
    dist.all_reduce(double)
    assert torch.equal(double, values_of_all_ranks(4099, torch.float64).sum(0))
    together = torch.zeros(SIZE * 4099)
    dist.all_gather_single(together, values(4099, torch.float32, RANK))
    assert torch.equal(together, values_of_all_ranks(4099, torch.float32).view(-1))


class Branching(nn.Module):
    """Layers of which one is used on rank 0 alone and one on no rank; every second rank has another gradient order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(20, 20) for _ in range(4))
        self.rare, self.never = nn.Linear(20, 20), nn.Linear(20, 20)

    def forward(self, x: Tensor, *, rank: int) -> Tensor:
        order = list(self.layers) if rank % 2 == 0 else list(reversed(self.layers))
        for layer in order:
            x = x + layer(x).tanh()
        return x + self.rare(x) if rank == 0 else x


def fully_sharded() -> None:
    """FSDP2 trains like one process on the full batch; DCP restores what it saved."""
    mesh = init_device_mesh("cpu", (SIZE,))
    torch.manual_seed(0)
    model, plain = (nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizers = [(one, torch.optim.AdamW(one.parameters(), lr=1e-2)) for one in (model, plain)]
    for _ in range(3):
        batch = torch.randn(2 * SIZE, 16)
        for one, optimizer in optimizers:
            one(batch if one is plain else batch.chunk(SIZE)[RANK]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    trained = [parameter.full_tensor() for parameter in model.parameters()]
    torch.testing.assert_close(trained, list(plain.parameters()), rtol=1e-5, atol=1e-6)
    folder = WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    assert all(torch.equal(one.full_tensor(), two) for one, two in zip(model.parameters(), trained, strict=True))
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(folder)


def reduced_gradients() -> None:
    """Sums of the reducer, over two micro-batches, equal one process that does the work of all ranks."""
    torch.manual_seed(0)
    model, alone = Branching(), Branching()
    alone.load_state_dict(model.state_dict())
    reducer = Reducer(model.parameters(), bucket_bytes=5000)
    batches = [torch.randn(3, 20, generator=torch.Generator().manual_seed(number)) for number in range(2 * SIZE)]
    for step in range(3):
        for network in (model, alone):
            for parameter in network.parameters():
                parameter.grad = None
        hcops.optimizer.zero_grad(model.parameters())
        model(batches[2 * RANK], rank=RANK).square().sum().backward()
        reducer.begin()
        model(batches[2 * RANK + 1], rank=RANK).square().sum().backward()
        reducer.finish()
        exchanged = reducer.exposure.comm_bytes, reducer.buffer.nbytes
        if step == 0:
            reducer.record()  # keeps the gradients
        for number, batch in enumerate(batches):
            alone(batch, rank=number // 2).square().sum().backward()
        for (name, own), wanted in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert (own.grad is None) == (wanted.grad is None), name
            if own.grad is not None and wanted.grad is not None:
                torch.testing.assert_close(own.grad, wanted.grad, rtol=1e-5, atol=1e-5)
            if own.grad is not None:
                assert 0 <= own.grad.data_ptr() - reducer.buffer.data_ptr() < reducer.buffer.nbytes
        assert exchanged[0] == exchanged[1]
    every = [torch.empty_like(reducer.buffer) for _ in range(SIZE)]
    dist.all_gather(every, reducer.buffer)
    assert all(torch.equal(other, reducer.buffer) for other in every)


def failures() -> None:
    with pytest.raises(TypeError, match="not supported"):
        dist.all_reduce(torch.zeros(3, dtype=torch.float8_e4m3fn))
    total = torch.ones(2)
    dist.all_reduce(total)  # the group still works
    assert total[0].item() == SIZE


def failing_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Communication hook of DistributedDataParallel with a failing all-reduce."""
    work = group.allreduce([bucket.buffer().to(torch.float8_e4m3fn)])
    return work.get_future().then(lambda future: future.value()[0])


def failing_backward() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(dist.group.WORLD, failing_hook)
    loss = model(torch.ones(2, 4)).sum()
    with pytest.raises(RuntimeError, match="not supported"):
        loss.backward()


def absent() -> None:
    """The last rank does not participate: the other ranks get an error in time that names it."""
    processes = WORLD.allgather(os.getpid())
    set_timeout(10.0)
    if RANK < SIZE - 1:
        last = f"rank {SIZE - 1} \\(process {processes[-1]}\\)"
        with pytest.raises(TimeoutError, match=f"not all ranks took part within 10 s: {last}$"):
            dist.all_reduce(torch.ones(10))
    WORLD.Barrier()  # the end of one rank ends all
    sys.stdout.write(f"rank {RANK} of {SIZE} is done\n")
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    with CommConfig(**json.loads(os.environ.get("DITHC_TEST_COMM", "{}"))).active():
        dist.init_process_group(NAME, timeout=timedelta(seconds=600))  # the ranks connect through MPI
        assert (dist.get_rank(), dist.get_world_size()) == (RANK, SIZE)
        for scene in sys.argv[1:]:
            globals()[scene]()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"rank {RANK} of {SIZE} is done\n")


if __name__ == "__main__":
    main()
