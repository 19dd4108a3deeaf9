"""Probe of the nodes of a job, executed by its ranks under the profile's launcher. Writes one JSON file.

Properties of each rank, its rates of products and copies while all ranks are active, and the rate of each pair of nodes.
"""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dithc.core.artifacts import atomic_write
from dithc.core.units import GIGA, MIB
from dithc.engine.comm import Group, connect_ranks
from dithc.engine.hardware import discover_machine
from dithc.engine.numa import available_bytes

PRODUCT_SIDE, COPY_BYTES, RATE_SECONDS = 1024, 64 * MIB, 0.5
MESSAGE_BYTES, MESSAGES = 2 * MIB, 5


def probe_node(out: Path, *, token: Path | None) -> None:
    """Connect the started ranks; rank 0 writes a JSON list with the properties of each, with the login node's token."""
    with connect_ranks(None) as group:
        group.barrier()
        identity = {"rank": group.rank, "node": group.node, "host": group.host, "size": group.size}
        row = _properties(token) | identity | _rates()
        nodes = dict(reversed([*enumerate(group.gather_objects(group.node))]))  # node of each rank, the first rank last
        leaders = sorted({node: rank for rank, node in nodes.items()}.values())
        row["links"] = _links(group, leaders) if group.rank in leaders else {}
        rows = group.gather_objects(row)
        if group.rank == 0:
            atomic_write(out, json.dumps(rows, indent=1) + "\n")
        group.barrier()


def _properties(token: Path | None) -> dict[str, Any]:
    machine = discover_machine()
    return {
        "time": time.time(),
        "cpus": len(machine.limits.allowed_cpus),
        "cores": len(machine.visible_cores),
        "all_cores": len(machine.cores),
        "dies": len({core.die for core in machine.cores}) or 1,
        "clusters": len({core.cluster for core in machine.cores}) or 1,
        "memory_bytes": available_bytes(),
        "huge_pages": machine.huge_pages.transparent,
        "machine": machine.describe(),
        "token": token.read_text() if token is not None and token.exists() else None,
    }


def _rates() -> dict[str, float]:
    """Measure GFLOP/s of a product and GB/s of a copy, read and written."""
    matrix, source = torch.randn(PRODUCT_SIDE, PRODUCT_SIDE), torch.zeros(COPY_BYTES, dtype=torch.uint8)
    product, target = torch.empty_like(matrix), torch.empty_like(source)
    seconds = _median_seconds(lambda: torch.mm(matrix, matrix, out=product), at_least=RATE_SECONDS)
    copy_seconds = _median_seconds(lambda: target.copy_(source), at_least=RATE_SECONDS)
    return {"product_gflops": 2 * PRODUCT_SIDE**3 / seconds / GIGA, "copy_gbs": 2 * COPY_BYTES / copy_seconds / GIGA}


def _links(group: Group, leaders: list[int]) -> dict[int, float]:
    """Exchange messages with the first rank of every other node, pairs at the same time; return GB/s by that rank."""
    rates: dict[int, float] = {}
    if len(leaders) == 1:
        return rates
    distributed = group.distributed()
    sent, received = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8), torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)

    def exchange(peer: int) -> None:
        works = [distributed.isend(sent, peer), distributed.irecv(received, peer)]
        for work in works:
            work.wait()

    for peer in _opponents(leaders.index(group.rank), len(leaders)):
        if peer is not None:
            seconds = _median_seconds(partial(exchange, leaders[peer]), count=MESSAGES)
            rates[leaders[peer]] = 2 * MESSAGE_BYTES / seconds / GIGA
    return rates


def _opponents(player: int, count: int) -> Iterator[int | None]:
    """Yield the opponent of a player in each round of a tournament in which all pairs meet once; None for a pause."""
    last = count - 1 + count % 2  # with an odd count, this player does not exist
    for turn in range(last):
        opponent = turn if player == last else (2 * turn - player) % last
        opponent = last if opponent == player else opponent
        yield opponent if opponent < count else None


def _median_seconds(action: Callable[[], Any], *, at_least: float = 0.0, count: int = 3) -> float:
    """Return median seconds of `count` or more calls over `at_least` seconds, after one more call."""
    action()
    times: list[float] = []
    while len(times) < count or sum(times) < at_least:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times)
