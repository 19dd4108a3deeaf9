"""Where the ranks that MPI started find each other for torch: a store on rank 0, whose address MPI tells the others."""

import importlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dithc.comm.environment import node_name, started_by
from dithc.comm.mpi import World
from dithc.log import logger, problem

log = logger(__name__)

LOOPBACK = "127.0.0.1"
# What env:// reads; where one of them is set, somebody else has said where to meet.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(minutes=30)

Handler = Callable[..., Iterator[tuple[Any, int, int]]]


def store_of(world: World, *, timeout: timedelta) -> Any:
    """A store that all ranks of the world use; collective over them."""
    one_node = len(set(world.all_gather(node_name()))) == 1
    store = None
    if world.rank == 0:
        host = LOOPBACK if one_node else os.environ.get("MASTER_ADDR") or _address()
        # Port 0: the system picks a free one, and keeps it; nobody can take it between choice and use.
        store = TCPStore(host, 0, world.size, is_master=True, timeout=timeout, wait_for_workers=False)
    host, port = world.broadcast((store.host, store.port) if store else None)
    return store or TCPStore(host, port, world.size, is_master=False, timeout=timeout)


def install() -> None:
    """Lets `init_process_group(backend)` without a store, a rank or variables of env:// meet through MPI."""
    # torch.distributed has a function of the module's name, so it is not found as an attribute.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Handler] | None = getattr(module, "_rendezvous_handlers", None)
    if handlers is None or "env" not in handlers:
        log.warning("this torch has no rendezvous env:// that can be extended: give init_process_group a store")
    elif not isinstance(handlers["env"], _Meeting):
        handlers["env"] = _Meeting(handlers["env"])


class _Meeting:
    """The rendezvous of env://, which meets through MPI where the environment and the caller name no place."""

    def __init__(self, before: Handler) -> None:
        self._before = before

    def __call__(self, url: str, timeout: timedelta = TIMEOUT, **options: Any) -> Iterator[tuple[Any, int, int]]:
        """Yields store, rank and number of ranks, once.

        Raises:
            UserError: the launcher announced another number of ranks than MPI knows.
        """
        if urlparse(url).query or any(name in os.environ for name in VARIABLES):
            yield from self._before(url, timeout=timeout, **options)
            return
        world, started = World(), started_by(os.environ)
        if started is not None and started.size not in (None, world.size):
            raise problem(
                "number of ranks",
                got=f"{world.size} in MPI, {started.size} announced by {started.launcher}",
                expected="the same",
                fix="use the launcher of the MPI that mpi4py loads (`dithc doctor` names both)",
            )
        yield store_of(world, timeout=timeout), world.rank, world.size


def _address() -> str:
    """This node's address as other nodes see it: that of the interface with the default route, else its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # a datagram socket sends nothing here; it only picks the route
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
