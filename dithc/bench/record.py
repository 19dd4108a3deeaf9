"""What every result of a bench says about where it was measured."""

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from dithc import hcops, native
from dithc.hardware import CorePlan, Machine, discover, plan

GIGA = 1e9
PACKAGES = ("dithc", "numba", "numpy")


def prepare_threads(threads: int | None) -> tuple[Machine, CorePlan]:
    """Looks at the machine, plans one rank on it, and sets torch's threads, which are also those of the C kernels."""
    machine = discover()
    core_plan = plan(machine, ranks_per_node=1, cpus_per_rank=threads)
    torch.set_num_threads(core_plan.ranks[0].num_threads)
    return machine, core_plan


def circumstances(machine: Machine, core_plan: CorePlan) -> dict[str, Any]:
    """Machine, versions, what serves each operator now, and the time."""
    return {
        "operators": hcops.describe(),
        "kernels": {"isa": native.isa(), "library": native.load().reason, "table": native.kernels()},
        "machine": machine.to_dict(),
        "core_plan": core_plan.to_dict(),
        "load_average": os.getloadavg(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__}
        | {package: found for package in PACKAGES if (found := _version(package))},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def last_level_bytes(machine: Machine) -> int:
    """The largest cache, all of it; 0 where it is not known."""
    return max((cache.size_bytes for cache in machine.caches), default=0)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
