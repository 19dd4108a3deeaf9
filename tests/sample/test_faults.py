"""Tests of a rank that exits, stops or runs out of memory in a step: all ranks end, and the error names it."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dithc.sample import SamplingJob
from tests.ranks import needs_launcher, run_on_ranks

PROGRAM = """
import os, pickle, signal, sys, threading
import torch
from dithc.engine.comm import init_distributed
from dithc.engine.hcops.c import matrix
from dithc.engine.native.call_sequences import RecordedCalls
from dithc.sample.parallel import ParallelDenoiser
from dithc.sample import sample
with open(sys.argv[1], "rb") as file:
    job, fault = pickle.load(file)
steps, product, run, call = 0, matrix.linear_gate_residual_forward, RecordedCalls.run, ParallelDenoiser.__call__
def counted(denoiser, *given):
    global steps
    steps += 1
    return call(denoiser, *given)
def is_now():  # behind what is measured before; once
    global steps
    steps, reached = (-1000, True) if steps > 40 else (steps, False)
    return reached
def happens(is_blocking):
    print("it happens", file=sys.stderr, flush=True)
    if fault == "memory":
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes")
    number = getattr(signal, fault)
    os.kill(os.getpid(), number) if is_blocking else threading.Thread(target=os.kill, args=(os.getpid(), number)).start()
def faulty(*given, **options):
    if is_now():  # behind the attention of a block
        happens(True)
    return product(*given, **options)
def faulty_run(recorded):
    if is_now():  # while kernels run
        happens(False)
    run(recorded)
with init_distributed(int(sys.argv[2])) as group:
    if group.rank == 1:
        matrix.linear_gate_residual_forward, RecordedCalls.run, ParallelDenoiser.__call__ = faulty, faulty_run, counted
    sample(job, group)
"""
LIMIT_SECONDS = 30.0


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.sampled("several ranks")
@needs_launcher
@pytest.mark.parametrize("degree", ["cfg", "data"])
@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP", "memory"])
def test_rank_failing_in_a_step_ends_all_ranks(
    fault: str, degree: str, job: Callable[..., SamplingJob], tmp_path: Path
) -> None:
    one = job(num_images=2, steps=200, degrees={degree: 2})
    start = time.monotonic()
    done = run_on_ranks(PROGRAM, ranks=2, given=(one, fault), folder=tmp_path)
    assert "it happens" in done.stderr
    assert done.returncode != 0
    assert time.monotonic() - start < 3 * LIMIT_SECONDS  # includes the start of the ranks on a busy machine
    assert "rank 1" in done.stderr
    if fault != "memory":
        lines = done.stderr.split("\n")
        (at,) = (number for number, line in enumerate(lines) if line.startswith("  got:"))
        assert re.match(r"  got: +rank 1 (\(process \d+|of 2 \(process \d+\)|has|is)", lines[at])
        assert [line[:11] for line in lines[at + 1 : at + 3]] == ["  expected:", "  fix:     "]
        assert not {"hc_", "Traceback", "MPI_Abort"} & set(re.findall("hc_|Traceback|MPI_Abort", done.stderr))
    assert not list(one.out.parent.glob("shard-*"))
