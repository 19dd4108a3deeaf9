"""Environment of a measurement, part of every result and of the identity of stored units."""

import json
import os
import platform
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import torch

from dithc.core.artifacts import Manifest, sha256_file
from dithc.core.logging import user_error
from dithc.engine import hcops, native
from dithc.engine.hardware import CorePlan, Machine, discover_machine, plan_cores
from dithc.engine.hcops import tuning

PACKAGES = ("dithc", "numba", "numpy")
MACHINE_TOPICS = ("operators", "kernels", "machine", "core_plan", "host", "system", "tuning")
"""Topics of `environment` that describe this machine rather than the software."""
PASSING = {"finished", "load_average", "memory_available_bytes"}
POOLS = {"pools", "huge_page_pools"}  # rows of (page bytes, reserved pages, free pages); the free pages vary
VARIABLES = re.compile(
    "(DITHC|HCOPS|OMP|GOMP|KMP|MKL|OPENBLAS|GOTO|BLIS|ARMPL|NUMBA|DNNL|ONEDNN|TORCH|PYTORCH|ATEN|MPICH|MPIR|I_MPI|OMPI_MCA"
    "|FI|UCX|GDAL|MALLOC|GLIBC|LD|CUDA)_.+|PYTHON(MALLOC|OPTIMIZE)"
)
"""Environment variables that change the speed of dithc or of its libraries."""
PROCESS_VARIABLES = {
    "DITHC_DRIVER_PID",
    "DITHC_DRIVER_HOST",
    "DITHC_LOG_LEVEL",
    "DITHC_POLL_SECONDS",
    "DITHC_NODE_NAME",
    "GDAL_CURL_CA_BUNDLE",
}


def require(is_valid: bool, option: str, got: object, expected: str) -> None:
    """Reject an option of a command unless it is valid."""
    if not is_valid:
        raise user_error(option, got=got, expected=expected, fix=f"correct {option.split()[-1]}")


def require_library(command: str) -> None:
    """Reject an installation without the C kernels."""
    if native.library() is None:
        fix = "reinstall dithc; its kernels are needed here"
        raise user_error(command, got=native.load_library().reason, expected="the compiled library", fix=fix)


def require_at_least(settings: object, command: str = "bench", **minimums: int) -> None:
    """Reject a field of settings, or an element of its tuple, below its minimum. None passes."""
    for name, minimum in minimums.items():
        value = getattr(settings, name)
        values = value if isinstance(value, tuple) else (value,)
        is_valid = value is None or min(values, default=0) >= minimum
        require(is_valid, f"{command} --{name.replace('_', '-')}", value, f"{minimum} or more")


def require_among(option: str, given: Sequence[str], known: Iterable[str]) -> None:
    """Reject unknown names, and an empty selection."""
    names = list(known)
    unknown = [name for name in given if name not in names]
    if unknown or not given:
        expected = f"one or more of {', '.join(names)}"
        raise user_error(option, got=",".join(unknown) or "none", expected=expected, fix="correct the names")


def prepare_threads(threads: int | None) -> tuple[Machine, CorePlan]:
    """Discover the machine, plan one rank, and set the threads of torch and of the C kernels."""
    machine = discover_machine()
    core_plan = plan_cores(machine, ranks_per_node=1, cpus_per_rank=threads)
    torch.set_num_threads(core_plan.ranks[0].num_threads)
    return machine, core_plan


def circumstances(machine: Machine, core_plan: CorePlan) -> dict[str, Any]:
    """Return machine, versions, active operator backends, and the time."""
    return {
        "operators": hcops.describe_kernels(),
        "kernels": {
            "isa": native.instruction_set(),
            "library": native.load_library().reason,
            "table": native.kernels(),
        },
        "machine": asdict(machine),
        "core_plan": asdict(core_plan),
        "load_average": os.getloadavg(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "onednn": onednn_version()}
        | {package: version(package) for package in PACKAGES},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def onednn_version() -> str:
    """Return the version of torch's oneDNN, which computes its bf16 products, or "none"."""
    found = re.search(r"MKL-DNN v([0-9.]+)", torch.__config__.show())
    return found.group(1) if found else "none"


def environment() -> dict[str, Any]:
    """Return all values, apart from the arguments, that determine the measured values, as JSON values by topic."""
    machine = discover_machine()
    folder = tuning.path_of(tuning.this_machine())
    tuned = sorted(folder.parent.glob("*.json")) if folder is not None else []
    variables = {name: os.environ[name] for name in sorted(os.environ) if VARIABLES.fullmatch(name)}
    libraries = sorted(Path(native.__file__).parent.glob("*.so"))
    values = _lasting(circumstances(machine, plan_cores(machine, ranks_per_node=1))) | {
        "host": [platform.node(), os.environ.get("SLURM_JOB_NODELIST", "")],
        "system": platform.platform(),
        "code": Manifest.code_here() | {path.name: sha256_file(path) for path in libraries},
        "packages": {package.name: package.version for package in distributions()},
        "tuning": {path.name: sha256_file(path) for path in tuned},
        "variables": {name: variables[name] for name in variables if name not in PROCESS_VARIABLES},
    }
    return dict(json.loads(json.dumps(values, default=str)))


def _lasting(value: Any) -> Any:
    """Drop values that change between two executions on an unchanged machine."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name not in PASSING}
        return {name: [row[:2] for row in kept[name]] if name in POOLS else _lasting(kept[name]) for name in kept}
    return [_lasting(element) for element in value] if isinstance(value, list | tuple) else value
