"""`torch.distributed` over MPI on the stock torch wheel; the import registers the backend "dithc-mpi" and loads MPI.

Contents: the process group (`backend`); every collective as an operation (`collectives`) of one communication thread
(`service`), through shared memory within a node (`exchange`) and MPI between nodes (`hierarchy`).
Invariants: collectives run in the order of their calls, on every rank. A rank for which other ranks wait is named
(`absent`).
Extending: another collective is a method of `backend.py` and an operation of `collectives.py`.
"""

from dithc.comm.process_group.backend import communicate_on, recorded, wait_at_most
from dithc.comm.process_group.exchange import Segment

__all__ = ["Segment", "communicate_on", "recorded", "wait_at_most"]
