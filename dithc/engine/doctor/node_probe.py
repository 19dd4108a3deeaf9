"""Probe of the nodes of a job, executed by its ranks under the profile's launcher. Writes one JSON file."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from dithc.core.artifacts import atomic_write
from dithc.engine.comm import connect_ranks
from dithc.engine.hardware import discover_machine
from dithc.engine.numa import available_bytes


def probe_node(out: Path, *, token: Path | None) -> None:
    """Connect the started ranks; rank 0 writes a JSON list with the properties of each, with the login node's token."""
    with connect_ranks(None) as group:
        group.barrier()
        rows = group.gather_objects(_properties(token) | {"rank": group.rank, "node": group.node, "size": group.size})
        if group.rank == 0:
            atomic_write(out, json.dumps(rows, indent=1) + "\n")
        group.barrier()


def _properties(token: Path | None) -> dict[str, Any]:
    machine = discover_machine()
    return {
        "host": os.environ.get("SLURMD_NODENAME") or platform.node(),
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
