"""The one file that imports mpi4py; importing it initialises MPI, so it is imported only where a launcher is at work."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from dithc.log import logger, problem

log = logger(__name__)

Buffer = np.ndarray[Any, np.dtype[Any]]

# A test moves a long message on by one of the cells of shared memory that an MPI sends it through, some tens of kilobytes, and
# between looks the communication thread may sleep; so a look is several tests, to move about a megabyte.
TESTS_PER_LOOK = 32

STANDARD_ERROR = 2
LATE_SECONDS, MOST_NAMED = 10.0, 8

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}


OPERATIONS = {
    "sum": MPI.SUM,
    "product": MPI.PROD,
    "max": MPI.MAX,
    "min": MPI.MIN,
    "band": MPI.BAND,
    "bor": MPI.BOR,
    "bxor": MPI.BXOR,
}


class World:
    """All ranks that were started together."""

    def __init__(self) -> None:
        self._communicator = MPI.COMM_WORLD
        self.rank: int = self._communicator.Get_rank()
        self.size: int = self._communicator.Get_size()
        self._process = os.getpid()

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        return list(self._communicator.allgather(value))

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value on every rank."""
        return self._communicator.bcast(value, root=0)

    def connect_again(self, timeout_seconds: float) -> None:
        """Wait until all ranks call it.

        Raises:
            UserError: a rank has ended, or does not call it within the timeout.
        """
        request, ended = self._exchange(False)
        begun, is_late = time.monotonic(), False
        fix = "let every rank of the program call comm.ranks() equally often"
        while not request.done():
            time.sleep(0.01)
            waited = time.monotonic() - begun
            if waited > LATE_SECONDS and not is_late:
                is_late = True
                log.warning(
                    "waiting for ranks that have not called comm.ranks() again; after %g s all end", timeout_seconds
                )
            if waited > timeout_seconds:
                got = f"not on all ranks in {timeout_seconds:g} s"
                raise problem("comm.ranks()", got=got, expected="all", fix=fix)
        if ended.any():
            names = ", ".join(f"rank {rank}" for rank in ended.nonzero()[0][:MOST_NAMED])
            raise problem(
                f"comm.ranks() waits for {ended.sum()} of {self.size} ranks",
                got=f"the program of {names} has ended",
                expected="the same calls of comm.ranks() on all ranks",
                fix=fix,
            )

    def announce_end(self) -> None:
        """Tell ranks in `connect_again` that the program of this one has ended. Wait for all, as the end of MPI would."""
        if os.getpid() == self._process:
            request, _ = self._exchange(True)
            while not request.done():
                time.sleep(0.01)

    def _exchange(self, has_ended: bool) -> "tuple[Request, npt.NDArray[np.bool_]]":
        """Return a request that is done once all ranks have called it, and an array that then holds the flag of each rank."""
        mine, flags = np.array([has_ended], dtype=bool), np.zeros(self.size, dtype=bool)
        return Request(self._communicator.Iallgather(mine, flags), mine, flags), flags

    def abort(self, status: int) -> NoReturn:
        """Ends every rank at once; the launcher reports `status`. Whoever calls it has said why: what MPI adds is not heard."""
        try:
            with suppress(OSError):  # of a process that may open no more files
                os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_ERROR)
            self._communicator.Abort(status)
        finally:
            os._exit(status)  # an MPI whose call returns once its launcher knows


class Request:
    """Something under way; `done` may be asked again and again until it is True, then no more."""

    def __init__(self, request: MPI.Request, *arrays: Any) -> None:
        self._request = request
        self._arrays = arrays  # MPI reads and writes them until it is done: somebody has to keep them

    def done(self) -> bool:
        """Whether it is complete; asking moves it on."""
        return any(self._request.Test() for _ in range(TESTS_PER_LOOK))


class Channel:
    """A communicator of our own, over some ranks, for arrays. Calls with the same arguments on all of them, in one order.

    Arrays are contiguous numpy arrays of a type that MPI has; counts are below `MOST_ELEMENTS`. All methods return at once,
    unless said otherwise, and the arrays belong to MPI until the request is done.
    """

    # An MPI of standard 3 counts with 31 bits.
    MOST_ELEMENTS = 1 << 30

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()

    @classmethod
    def over(cls, ranks: Sequence[int] | None = None, *, tag: int = 0) -> "Channel":
        """A channel over ranks of the world, all by default; collective over just these ranks."""
        if ranks is None or len(ranks) == MPI.COMM_WORLD.Get_size():
            return cls(MPI.COMM_WORLD.Dup())
        group = MPI.COMM_WORLD.Get_group().Incl(list(ranks))
        return cls(MPI.COMM_WORLD.Create_group(group, tag))

    def split(self, color: int, *, key: int) -> "Channel":
        """A channel over the ranks with the same color, in the order of the keys; waits for all ranks."""
        return Channel(self._communicator.Split(color, key))

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's value; waits for all ranks."""
        return list(self._communicator.allgather(value))

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value; waits for it."""
        return self._communicator.bcast(value, root=0)

    def wait_for_all(self) -> None:
        """Returns when all ranks have called it."""
        self._communicator.Barrier()

    def all_reduce(self, x: Buffer, op: str) -> Request:
        """x becomes its combination over the ranks."""
        return Request(self._communicator.Iallreduce(MPI.IN_PLACE, x, op=OPERATIONS[op]), x)

    def all_reduce_and_wait(self, x: Buffer, op: str) -> None:
        """The same, and waits for it inside MPI."""
        self._communicator.Allreduce(MPI.IN_PLACE, x, op=OPERATIONS[op])

    def reduce(self, x: Buffer, out: Buffer | None, op: str, *, root: int) -> Request:
        """out on `root` becomes the combination of x."""
        return Request(self._communicator.Ireduce(x, out, op=OPERATIONS[op], root=root), x, out)

    def broadcast(self, x: Buffer, *, root: int) -> Request:
        """x becomes that of `root`."""
        return Request(self._communicator.Ibcast(x, root=root), x)

    def all_gather(self, x: Buffer, out: Buffer) -> Request:
        """out holds x of rank 0, x of rank 1, ...; x may be the own part of out."""
        return Request(self._communicator.Iallgather(x, out), x, out)

    def all_gather_parts(self, x: Buffer, counts: Sequence[int]) -> Request:
        """Part r of x, of counts[r] elements, becomes that of rank r."""
        starts = [sum(counts[:i]) for i in range(self.size)]
        return Request(self._communicator.Iallgatherv(MPI.IN_PLACE, [x, (counts, starts)]), x)

    def exchange_parts(self, x: Buffer, x_counts: Sequence[int], out: Buffer, out_counts: Sequence[int]) -> Request:
        """x holds what goes to rank 0, 1, ..., out what came from them; counts in elements. The own part stays where it is."""
        layouts = []
        for array, counts in ((x, x_counts), (out, out_counts)):
            starts = [sum(counts[:i]) for i in range(self.size)]
            moved = [0 if rank == self.rank else count for rank, count in enumerate(counts)]
            layouts.append([array, (moved, starts)])
        return Request(self._communicator.Ialltoallv(*layouts), x, out)

    def send(self, x: Buffer, *, to: int, tag: int) -> Request:
        """Sends x; `receive` on the other rank takes it."""
        return Request(self._communicator.Isend(x, dest=to, tag=tag), x)

    def receive(self, out: Buffer, *, source: int | None, tag: int) -> Request:
        """Receives into out; from any rank with source None."""
        origin = MPI.ANY_SOURCE if source is None else source
        return Request(self._communicator.Irecv(out, source=origin, tag=tag), out)

    def barrier(self) -> Request:
        """Done when all ranks have called it."""
        return Request(self._communicator.Ibarrier())


def multiple_threads() -> bool:
    """Whether threads may call MPI at the same time."""
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def facts() -> dict[str, str]:
    """Library, version and thread level of the MPI in use."""
    vendor, numbers = MPI.get_vendor()
    return {
        "vendor": f"{vendor} {'.'.join(map(str, numbers))}",
        "library": MPI.Get_library_version().splitlines()[0].strip("\0 "),
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": THREAD_LEVELS.get(MPI.Query_thread(), "unknown"),
        "chosen_by": os.environ.get(
            "MPI4PY_LIBMPI", "search order of mpi4py: this environment, then the loader's path"
        ),
    }
