"""Rank program for tests of groups: `rank_program.py <scene> [expected ranks]`; prints one line on success."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from dithc.engine.comm import Group, connect_ranks, init_distributed
from dithc.engine.comm.launch.exit_report import RANK_VARIABLES


def exchange(group: Group) -> None:
    rank, size = group.rank, group.size
    assert (group.local_rank, group.local_size) == (rank, size)
    group.barrier()
    assert group.any(rank == size - 1)
    assert not group.any(False)
    assert group.broadcast_object({"from": rank}) == {"from": 0}
    assert group.broadcast_object(rank, source=size - 1) == size - 1
    assert group.gather_objects(rank * 10) == [10 * other for other in range(size)]
    values = torch.arange(4.0) + rank
    total = sum(range(size))
    assert torch.equal(group.all_reduce_(values.clone()), torch.arange(4.0) * size + total)
    assert torch.equal(group.all_reduce_(values.clone(), op="mean"), torch.arange(4.0) + total / size)
    assert torch.equal(group.all_reduce_(values.clone(), op="max"), torch.arange(4.0) + size - 1)
    assert torch.equal(group.all_reduce_(values.clone(), op="min"), torch.arange(4.0))


def fail() -> str:
    raise RuntimeError("a rank fails while it connects")


def stop() -> str:
    os.kill(os.getpid(), signal.SIGSTOP)
    return "a node"


def prepare(scene: str) -> None:
    """Prepare the fault of rank 1 during its connection."""
    from dithc.engine.comm import environment, group

    if scene == "fail-early":
        environment.node_name = fail  # called when MPI has started
    elif scene == "stopped-after-mpi":
        environment.node_name = stop
    elif scene in ("stopped-before-mpi", "paused") and not (been := Path("been here")).exists():
        guarded = group.start_watchdog

        def stopped() -> None:
            guarded()
            been.touch()
            if scene == "paused":  # a stopped process cannot resume itself
                subprocess.Popen(["/bin/sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"])
            stop()

        group.start_watchdog = stopped


def reconnect() -> None:
    """Use ranks in sequence and nested, with an agreed end in the first, after work on a team of threads."""
    torch.set_num_threads(2)
    torch.ones(1 << 18).add_(1)  # a forked child would wait for the team of this process
    cpus = os.sched_getaffinity(0)
    for code in (75, 0):
        with suppress(SystemExit), init_distributed(2) as group:
            torch.set_num_threads(2)
            torch.ones(1 << 18).add_(1)
            with init_distributed() as inner:
                exchange(inner)
            exchange(group)
            raise SystemExit(code)
        assert os.sched_getaffinity(0) == cpus


def main() -> None:
    scene = sys.argv[1]
    expected = int(sys.argv[2]) if len(sys.argv) > 2 else None
    if scene == "again":
        reconnect()
    if scene == "ended":
        with connect_ranks(expected) as group:
            pass
        if group.rank == 1:
            return
    if any(os.environ.get(name) == "1" for name in RANK_VARIABLES):
        prepare(scene)
    with connect_ranks(expected, timeout_seconds=600) as group:
        if scene == "exchange":
            exchange(group)
        elif scene == "fail" and group.rank == group.size - 1:
            raise RuntimeError("a rank fails on purpose")
        elif scene == "die" and group.rank == group.size - 1:
            os._exit(9)
        elif scene == "leave":
            raise SystemExit(75)
        elif scene == "killed" and group.rank == group.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        elif scene == "killed":
            group.barrier()
        elif scene == "stopped-at-parts":
            with group.stop_timeout():
                if group.rank == 1:
                    stop()
                group.split([list(range(group.size))])
        if scene in ("fail", "die"):
            time.sleep(3600)
    sys.stdout.write(f"rank {group.rank} of {group.size} is done\n")


if __name__ == "__main__":
    main()
