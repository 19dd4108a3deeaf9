"""Lease of a store, held by one trainer for all its ranks."""

from contextlib import ExitStack

from dithc.comm import Group
from dithc.runs import Lease, Store


def leased(store: Store, group: Group, stack: ExitStack) -> Lease | None:
    """Acquire the lease on rank 0 (None elsewhere).

    Raises:
        Lease.Held: on all ranks, if another trainer holds it.
    """
    lease, refusal = None, None
    if group.rank == 0:
        try:
            lease = stack.enter_context(Lease(store.folder))
        except Lease.Held as error:
            refusal = str(error)
    refusal = group.broadcast_object(refusal)
    if refusal is not None:
        raise Lease.Held(refusal)
    return lease
