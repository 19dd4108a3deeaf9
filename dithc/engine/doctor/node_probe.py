"""Probe of the nodes of a job, executed by its ranks under the profile's launcher. Writes one JSON file.

Properties of each rank, its rates of products and copies while all ranks are active, and the rate of each pair of nodes.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dithc.core.artifacts import atomic_write
from dithc.core.units import GIGA, MIB
from dithc.engine.comm import connect_ranks
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
        rates = group.link_rates(message_bytes=MESSAGE_BYTES, messages=MESSAGES)
        row["links"] = {rank: rate / GIGA for rank, rate in rates.items()}
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


def _median_seconds(action: Callable[[], Any], *, at_least: float = 0.0, count: int = 3) -> float:
    """Return median seconds of `count` or more calls over `at_least` seconds, after one more call."""
    action()
    times: list[float] = []
    while len(times) < count or sum(times) < at_least:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times)
