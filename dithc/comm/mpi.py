"""The one file that imports mpi4py; importing it initialises MPI, so it is imported only where a launcher is at work."""

import os
from typing import Any

from mpi4py import MPI

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}


class World:
    """All ranks that were started together."""

    def __init__(self) -> None:
        self._communicator = MPI.COMM_WORLD
        self.rank: int = self._communicator.Get_rank()
        self.size: int = self._communicator.Get_size()

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        return list(self._communicator.allgather(value))

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value on every rank."""
        return self._communicator.bcast(value, root=0)

    def abort(self, status: int) -> None:
        """Ends every rank at once; the launcher reports `status`."""
        self._communicator.Abort(status)


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
