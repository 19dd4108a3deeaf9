"""Ranks: starting them, connecting them, and stopping them all together.

Why: a training on several dies or nodes is several processes that must agree; the ways in which they fail to (a launcher
of one MPI with the library of another, a rank that dies, a workflow driver that is killed) are met here, once.
Invariants: one rank without a launcher never loads MPI; the number of ranks is compared with the number expected before
any work; an error on one rank ends all of them within seconds, and is said once where several have it; one that stands
still is named; nothing outlives the ranks; exit statuses reach the caller unchanged (75: stopped and saved, run again; 76:
another trainer holds the run); torch is imported only where tensors are exchanged.
How to change it: another launcher is a branch of `launch.launch_line` with its test; what watches and ends it is in
`supervision`; another backend for gradients replaces the process group made in `group.py` behind the same `Group`. mpi4py is
imported in `mpi.py` only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dithc.comm import traffic
from dithc.comm.cores import ranks
from dithc.comm.group import Group, connect
from dithc.comm.launching import ending, launch, supervise

if TYPE_CHECKING:
    from dithc.comm.gradients import Reducer

__all__ = ["Group", "Reducer", "connect", "ending", "launch", "ranks", "supervise", "traffic"]


def __getattr__(name: str) -> Any:
    if name != "Reducer":  # it needs torch, and whoever only starts ranks does not
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.gradients").Reducer
