"""`torch.distributed` over MPI on the stock torch wheel; the import registers the backend "dithc-mpi" and loads MPI.

Contents: the process group (`backend`); every collective as an operation (`collectives`) of one communication thread
(`progress_thread`), through shared memory within a node (`shm_collectives`) and MPI between nodes (`hierarchical`);
groups of nodes by measured links (`islands`).
Invariants: collectives run in the order of their calls, on every rank. A rank for which other ranks wait is named
(`missing_ranks`).
Extending: another collective is a method of `backend.py` and an operation of `collectives.py`.
"""

from dithc.engine.comm.process_group.backend import bind_progress_threads, set_timeout
from dithc.engine.comm.process_group.islands import measure_rates
from dithc.engine.comm.process_group.shm_collectives import SharedSegment

__all__ = ["SharedSegment", "bind_progress_threads", "measure_rates", "set_timeout"]
