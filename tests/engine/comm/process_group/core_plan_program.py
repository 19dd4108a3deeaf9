"""Rank program with a fixed core plan: communication threads use the last CPU; prints `apart` if they do."""

import dataclasses
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from dithc.cli.distributed import ranks
from dithc.config import ExperimentConfig
from dithc.engine.comm import session

REAL_PLAN = session.plan_cores


def planned(machine, *, ranks_per_node, cpus_per_rank, own_mask):
    """Each rank has all cores of this machine; the last is reserved."""
    everything = REAL_PLAN(machine, ranks_per_node=1).ranks[0]
    seen = machine.visible_cores
    own = dataclasses.replace(
        everything,
        compute=tuple(core.index for core in seen[:-1]),
        reserved=(("communication", seen[-1].index),),
        num_threads=len(seen) - 1,
        pin=True,
    )
    return dataclasses.replace(REAL_PLAN(machine, ranks_per_node=1), ranks=(own,) * ranks_per_node)


def masks() -> dict[str, set[frozenset[int]]]:
    """Return the masks of this process's threads, with communication threads separate."""
    found: dict[str, set[frozenset[int]]] = {"communication": set(), "others": set()}
    for task in Path("/proc/self/task").iterdir():
        kind = "communication" if (task / "comm").read_text().startswith("dithc-mpi") else "others"
        found[kind].add(frozenset(os.sched_getaffinity(int(task.name))))
    return found


session.plan_cores = planned
everything = frozenset(os.sched_getaffinity(0))
with ranks(ExperimentConfig(), expected=2, timeout_seconds=600) as group:
    later = dist.new_group()
    dist.all_reduce(torch.ones(1000), group=later)
    torch.ones(100_000).sum()
    found, last = masks(), max(everything)
    assert found["communication"] == {frozenset({last})}, found
    assert found["others"] == {everything - {last}}, found
    assert torch.get_num_threads() == len(everything) - 1
    sys.stdout.write("apart\n")  # a single write, because lines of ranks must not interleave
