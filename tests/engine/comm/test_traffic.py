"""Tests of traffic counters: the kernel counts TCP, and a profiling layer counts MPI."""

import os
import socket
import subprocess
import sys

import pytest

from dithc.core.logging import UserError
from dithc.engine.comm import traffic
from tests.ranks import launch_arguments, needs_launcher

PROGRAM = """
from mpi4py import MPI
import numpy
from dithc.engine.comm import traffic
world = MPI.COMM_WORLD
before = traffic.sent()
values, total = numpy.ones(1000), numpy.empty(1000)
world.Allreduce(values, total)
world.Allreduce(MPI.IN_PLACE, values)
small, sums = numpy.ones(1000, "f4"), numpy.empty(1000, "f4")
request = world.Iallreduce(small, sums)
request.Wait()
if world.rank == 0:
    world.Send(total[:10], dest=1)
else:
    world.Recv(values[:10], source=0)
world.Barrier()
counted = traffic.sent().since(before)
assert total[0] == world.size
assert counted.mpi_calls == 6, counted
assert counted.mpi_bytes == 8000 + 8000 + 4000 + (80 if world.rank == 0 else 0), counted
"""


def test_sent_bytes_of_connections_are_counted():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
            before = traffic.sent()
            one.sendall(b"x" * 100_000)
            other.sendall(b"y" * 50)
            assert traffic.sent().since(before).tcp_bytes == 100_050


def test_missing_profiling_layer_counts_none_and_failed_build_raises(monkeypatch, tmp_path):
    monkeypatch.delenv(traffic.COUNT_VARIABLE, raising=False)
    assert traffic.sent().mpi_calls is None
    monkeypatch.setenv(traffic.COUNT_VARIABLE, str(tmp_path / "absent"))
    assert traffic.sent().mpi_bytes is None
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UserError, match="profiling layer of MPI"):
        traffic.build_counter(tmp_path)


@pytest.mark.mpi
@needs_launcher
def test_profiling_layer_counts_calls_and_bytes_of_mpi(tmp_path):
    try:
        library = traffic.build_counter(tmp_path)
    except UserError as error:
        pytest.skip(str(error))
    counter = ["env", f"LD_PRELOAD={library}", f"{traffic.COUNT_VARIABLE}={tmp_path / 'count'}"]
    command = [*launch_arguments(2), *counter, sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
