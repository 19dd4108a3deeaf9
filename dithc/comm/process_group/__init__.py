"""`torch.distributed` over MPI on the stock torch wheel; importing this room makes the backend "dithc-mpi" known, and loads MPI.

What: the process group (`backend`), every collective as an operation (`collectives`) of one communication thread (`service`), by
way of shared memory within a node (`exchange`) and of MPI between nodes (`hierarchy`).
Invariants: operations run in the order in which they were asked for, on every rank; who keeps others waiting is named (`absent`).
How to change it: another collective is a method of `backend.py` and an operation of `collectives.py`.
"""

from dithc.comm.process_group.backend import communicate_on, recorded, wait_at_most
from dithc.comm.process_group.segment import Segment

__all__ = ["Segment", "communicate_on", "recorded", "wait_at_most"]
