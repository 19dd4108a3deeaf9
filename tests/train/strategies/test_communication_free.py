"""Tests of training on one die: no MPI call and no byte on a connection, measured by the traffic counters."""

import os
import subprocess
import sys

import pytest

from dithc.core.logging import UserError
from dithc.engine.comm import traffic

PROGRAM = """
import sys
import torch
from mpi4py import MPI
from dithc.engine.comm import Group, traffic
from dithc.train import StepBenchmark, benchmark_steps

start = traffic.sent()
assert start.mpi_calls == 0, start
assert MPI.COMM_WORLD.allreduce(1) == 1
live = traffic.sent().since(start)
assert live.mpi_calls > 0 and live.mpi_bytes > 0, "the layer does not count in this process"
torch.set_num_threads(2)
model = {"preset": "DiT-S/2", "hidden_size": 64, "depth": 2, "num_heads": 2}
before = traffic.sent()
result = benchmark_steps(StepBenchmark(model=model, batch=2, dtype=sys.argv[1], steps=2), Group())
counted = traffic.sent().since(before)
assert len(result["losses"]) == 4 and len(result["seconds"]) == 2
assert (counted.mpi_calls, counted.mpi_bytes, counted.tcp_bytes, counted.shared_bytes) == (0, 0, 0, 0), counted
assert result["each_rank"][0]["sent"] == {"tcp_bytes": 0, "mpi_calls": 0, "mpi_bytes": 0, "shared_bytes": 0}, result
"""


@pytest.mark.sampled("several ranks")
@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_steps_on_a_single_die_use_no_mpi_and_no_network(tmp_path, dtype):
    try:
        library = traffic.build_counter(tmp_path)
    except UserError as error:
        pytest.skip(str(error))
    more = {"LD_PRELOAD": str(library), traffic.COUNT_VARIABLE: str(tmp_path / "count"), "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, dtype], env=os.environ | more, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
