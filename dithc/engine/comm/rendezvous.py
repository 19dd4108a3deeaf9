"""Rendezvous of torch.distributed for ranks that MPI started: a store on rank 0, whose address MPI distributes."""

import importlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlparse

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dithc.core.logging import get_logger, user_error
from dithc.engine.comm.environment import node_name, started_by
from dithc.engine.comm.mpi import MpiWorld

log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
# Read by env://. If one of them is set, the user has chosen the rendezvous.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(minutes=30)

Handler = Callable[..., Iterator[tuple[Any, int, int]]]


def store_of(world: MpiWorld, *, timeout: timedelta) -> Any:
    """Create a store that all ranks of the world use; collective over them."""
    one_node = len(set(world.all_gather_object(node_name()))) == 1
    store = None
    if world.rank == 0:
        host = LOOPBACK if one_node else os.environ.get("MASTER_ADDR") or _local_address()
        # Port 0: the system picks a free port and reserves it, so no other process can claim it before its use.
        store = TCPStore(host, 0, world.size, is_master=True, timeout=timeout, wait_for_workers=False)
    host, port = world.broadcast_object((store.host, store.port) if store else None)
    return store or TCPStore(host, port, world.size, is_master=False, timeout=timeout)


def install() -> None:
    """Let `init_process_group(backend)` connect through MPI, without env:// variables, a store or a rank."""
    # torch.distributed has a function with the module's name, which hides the module as an attribute.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Handler] = getattr(module, "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = partial(_connect, handlers["env"])
    else:
        log.warning("this torch has no rendezvous env:// that can be extended: give init_process_group a store")


def _connect(env: Handler, url: str, timeout: timedelta = TIMEOUT, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield store, rank and number of ranks once, through MPI if environment and caller specify no address.

    Raises UserError if the launcher announced another number of ranks than MPI reports.
    """
    if urlparse(url).query or any(name in os.environ for name in VARIABLES):
        yield from env(url, timeout=timeout, **options)
        return
    world, started = MpiWorld(), started_by(os.environ)
    if started is not None and started.size not in (None, world.size):
        raise user_error(
            "number of ranks",
            got=f"{world.size} in MPI, {started.size} announced by {started.launcher}",
            expected="the same",
            fix="use the launcher of the MPI that mpi4py loads (`dithc doctor` names both)",
        )
    yield store_of(world, timeout=timeout), world.rank, world.size


def _local_address() -> str:
    """Return this node's address for other nodes: of the interface with the default route, else the host name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # connecting a datagram socket sends no data; it only selects the route
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
