"""Interface to mpi4py; only this module imports it. The import initializes MPI, so import it only under a launcher."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from dithc.core.logging import get_logger, user_error

log = get_logger(__name__)

Buffer = np.ndarray[Any, np.dtype[Any]]

# An MPI sends a long message in cells of shared memory of some tens of kilobytes, and one test moves one cell. The
# communication thread may sleep between two polls, so a poll makes several tests, to move about a megabyte.
TESTS_PER_POLL = 32

STANDARD_ERROR = 2
LATE_SECONDS, MAX_NAMED = 10.0, 8

LEVELS = ("single", "funneled", "serialized", "multiple")
THREAD_LEVELS = {getattr(MPI, f"THREAD_{name.upper()}"): name for name in LEVELS}
OPERATIONS = {name: getattr(MPI, name.upper()) for name in ("sum", "max", "min", "band", "bor", "bxor")}
OPERATIONS["product"] = MPI.PROD


class MpiRequest:
    """Active communication request; call `done` repeatedly until it returns True, and not afterwards."""

    def __init__(self, request: MPI.Request, *arrays: Any) -> None:
        self._request = request
        self._arrays = arrays  # MPI reads and writes the arrays until the request completes, so they must stay alive

    def done(self) -> bool:
        """Poll the request, which also advances it; return whether it is complete."""
        return any(self._request.Test() for _ in range(TESTS_PER_POLL))


class MpiCommunicator:
    """Private communicator over some ranks, for arrays. All ranks make the same calls in the same order.

    Arrays are contiguous numpy arrays of a type that MPI supports; counts are below `MAX_ELEMENTS`. All methods return
    immediately unless documented otherwise. MPI owns the arrays until the request completes.
    """

    # Counts of MPI 3 have 31 bits.
    MAX_ELEMENTS = 1 << 30

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()

    @classmethod
    def from_ranks(cls, ranks: Sequence[int] | None = None) -> "MpiCommunicator":
        """Create a channel over ranks of the world, by default all; collective over just these ranks."""
        if ranks is None or len(ranks) == MPI.COMM_WORLD.Get_size():
            return cls(MPI.COMM_WORLD.Dup())
        group = MPI.COMM_WORLD.Get_group().Incl(list(ranks))
        return cls(MPI.COMM_WORLD.Create_group(group))

    def split(self, color: int, *, key: int) -> "MpiCommunicator":
        """Create a channel over the ranks with the same color, ordered by key; blocks until all ranks call it."""
        return MpiCommunicator(self._communicator.Split(color, key))

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's value; blocks until all ranks call it."""
        return list(self._communicator.allgather(value))

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value; blocks."""
        return self._communicator.bcast(value, root=0)

    def wait_for_all(self) -> None:
        self._communicator.Barrier()

    def all_reduce(self, x: Buffer, op: str) -> MpiRequest:
        return MpiRequest(self._communicator.Iallreduce(MPI.IN_PLACE, x, op=OPERATIONS[op]), x)

    def all_reduce_and_wait(self, x: Buffer, op: str) -> None:
        """Reduce x over the ranks in place; blocks inside MPI."""
        self._communicator.Allreduce(MPI.IN_PLACE, x, op=OPERATIONS[op])

    def reduce(self, x: Buffer, out: Buffer | None, op: str, *, root: int) -> MpiRequest:
        return MpiRequest(self._communicator.Ireduce(x, out, op=OPERATIONS[op], root=root), x, out)

    def broadcast(self, x: Buffer, *, root: int) -> MpiRequest:
        """Copy x of rank `root` to x of all ranks."""
        return MpiRequest(self._communicator.Ibcast(x, root=root), x)

    def all_gather(self, x: Buffer, out: Buffer) -> MpiRequest:
        """Gather x of each rank into `out`, in rank order; x may be this rank's part of `out`."""
        return MpiRequest(self._communicator.Iallgather(x, out), x, out)

    def all_gather_parts(self, x: Buffer, counts: Sequence[int]) -> MpiRequest:
        """Gather in place: part r of x, of counts[r] elements, comes from rank r."""
        return MpiRequest(self._communicator.Iallgatherv(MPI.IN_PLACE, [x, list(counts)]), x)

    def exchange_parts(self, x: Buffer, x_counts: Sequence[int], out: Buffer, out_counts: Sequence[int]) -> MpiRequest:
        """Exchange the parts of x for rank 0, 1, ... between all ranks; `out` receives the parts from them.

        Counts are in elements. This rank's own part is not copied.
        """
        layouts = []
        for array, counts in ((x, x_counts), (out, out_counts)):
            starts = [sum(counts[:i]) for i in range(self.size)]
            sent = [0 if rank == self.rank else count for rank, count in enumerate(counts)]
            layouts.append([array, (sent, starts)])
        return MpiRequest(self._communicator.Ialltoallv(*layouts), x, out)

    def send(self, x: Buffer, *, dest: int, tag: int) -> MpiRequest:
        return MpiRequest(self._communicator.Isend(x, dest=dest, tag=tag), x)

    def receive(self, out: Buffer, *, source: int | None, tag: int) -> MpiRequest:
        """Receive into `out`; source None accepts any rank."""
        origin = MPI.ANY_SOURCE if source is None else source
        return MpiRequest(self._communicator.Irecv(out, source=origin, tag=tag), out)

    def barrier(self) -> MpiRequest:
        return MpiRequest(self._communicator.Ibarrier())


class MpiWorld(MpiCommunicator):
    """All ranks that were started together."""

    def __init__(self) -> None:
        super().__init__(MPI.COMM_WORLD)
        self._process = os.getpid()

    def connect_again(self, timeout_seconds: float) -> None:
        """Wait until all ranks call it; UserError if a rank has ended or is late."""
        request, ended = self._exchange(False)
        start, is_late = time.monotonic(), False
        fix = "let every rank of the program call comm.init_distributed() equally often"
        while not request.done():
            time.sleep(0.01)
            waited = time.monotonic() - start
            if waited > LATE_SECONDS and not is_late:
                is_late = True
                log.warning(
                    "waiting for ranks that have not called comm.init_distributed() again; after %g s all end",
                    timeout_seconds,
                )
            if waited > timeout_seconds:
                got = f"not on all ranks in {timeout_seconds:g} s"
                raise user_error("comm.init_distributed()", got=got, expected="all", fix=fix)
        if ended.any():
            names = ", ".join(f"rank {rank}" for rank in ended.nonzero()[0][:MAX_NAMED])
            raise user_error(
                f"comm.init_distributed() waits for {ended.sum()} of {self.size} ranks",
                got=f"the program of {names} has ended",
                expected="the same calls of comm.init_distributed() on all ranks",
                fix=fix,
            )

    def announce_end(self) -> None:
        """Notify ranks in `connect_again` that this program has ended; waits for all ranks, as MPI's exit would."""
        if os.getpid() == self._process:
            request, _ = self._exchange(True)
            while not request.done():
                time.sleep(0.01)

    def _exchange(self, has_ended: bool) -> tuple[MpiRequest, npt.NDArray[np.bool_]]:
        """Return a request that completes once all ranks have called this, and an array for the flag of each rank."""
        flag, flags = np.array([has_ended], dtype=bool), np.zeros(self.size, dtype=bool)
        return MpiRequest(self._communicator.Iallgather(flag, flags), flag, flags), flags

    def abort(self, status: int) -> NoReturn:
        """End every rank immediately. The caller has logged the reason; messages of MPI are discarded."""
        try:
            with suppress(OSError):  # this process may have reached its limit of open files
                os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_ERROR)
            self._communicator.Abort(status)
        finally:
            os._exit(status)  # some MPIs return from Abort after they have notified their launcher


def multiple_threads() -> bool:
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def library_properties() -> dict[str, str]:
    vendor, numbers = MPI.get_vendor()
    return {
        "vendor": f"{vendor} {'.'.join(map(str, numbers))}",
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": THREAD_LEVELS.get(MPI.Query_thread(), "unknown"),
    }
