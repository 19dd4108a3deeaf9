"""Launch, connection, supervision and joint termination of ranks.

Purpose: distributed training and sampling run several processes that must agree. This package handles their failures:
an MPI launcher that does not match the MPI library, a rank that dies, a workflow driver that is killed.
Invariants: a single rank without a launcher never loads MPI. The number of ranks is compared with the expected number
before any work. An error on one rank ends all ranks within seconds; if several ranks raise the same error, it is logged
once. The log names a rank that hangs. No process or file outlives the ranks. Exit statuses reach the caller unchanged
(75: stopped and saved, run again; 76: another trainer holds the run). torch is imported only if tensors are exchanged.
Extending: another launcher is a branch of `launch.launch_command` with its test; `launch.supervisor` watches and ends it.
Another backend for gradients replaces the process group created in `group.py` behind the same `Group`. Only `mpi.py`
imports mpi4py.
"""

from typing import TYPE_CHECKING, Any

from dithc.engine.comm import environment, traffic
from dithc.engine.comm.group import Group, connect_ranks, watch_rank
from dithc.engine.comm.session import init_distributed
from dithc.engine.comm.settings import CommConfig

if TYPE_CHECKING:
    from dithc.engine.comm.gradients import Reducer, ShardedParameters

__all__ = [
    "CommConfig",
    "Group",
    "Reducer",
    "ShardedParameters",
    "connect_ranks",
    "environment",
    "init_distributed",
    "traffic",
    "watch_rank",
]


def __getattr__(name: str) -> Any:
    if name not in ("Reducer", "ShardedParameters"):  # they need torch, which a process that only starts ranks does not
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dithc.engine.comm import gradients

    return getattr(gradients, name)
