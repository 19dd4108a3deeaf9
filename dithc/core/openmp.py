"""OpenMP variables that bind or shrink thread teams: removed before a runtime reads them.

A runtime binds the importing thread to one CPU while torch is imported, in every rank to the same CPU. `import dithc` removes
the variables from the environment of this process and its children. If a runtime was loaded earlier, it restores the CPUs.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

LIMIT = "OMP_THREAD_LIMIT"
# libgomp reads the OMP_ and GOMP_ variables; the runtimes of Intel and LLVM read all of them.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "KMP_PLACE_THREADS")
SHRINKING = (LIMIT, "OMP_DYNAMIC", "KMP_DEVICE_THREAD_LIMIT", "KMP_ALL_THREADS")
WITHOUT_EFFECT = ("", "false", "none", "disabled")
RUNTIMES = ("libgomp", "libiomp5", "libomp")
MAX_CPUS = 8192

removed: dict[str, str] = {}
"""Variables that `import dithc` removed from the environment, with their values."""
_pending: list[str] = []
_runtime_binds = False


def report() -> None:
    """Log the removed variables, once."""
    while _pending:
        log.info(_pending.pop())


def unbind_team() -> None:
    """Let the worker threads of a runtime that binds them run on all CPUs of this process."""
    if not _runtime_binds:
        return
    import torch

    torch.ones(torch.get_num_threads() << 16).add_(1)  # starts all threads of the team
    _bind_threads(os.sched_getaffinity(0))


def release_teams() -> None:
    """End the worker threads of all runtimes; a forked child would wait for them forever."""
    for runtime in _runtimes():
        with suppress(AttributeError):  # before OpenMP 5.0
            runtime.omp_pause_resource_all(2)


def _remove() -> None:
    for name in (*BINDING, *SHRINKING):
        if (value := os.environ.get(name, "").strip()).lower() not in WITHOUT_EFFECT:
            removed[name] = os.environ.pop(name)
            if name == LIMIT and value.isdigit():
                os.environ.setdefault("OMP_NUM_THREADS", value)
    if removed:
        ignored = ", ".join(f"{name}={value}" for name, value in removed.items())
        usable = f"this process may use {len(os.sched_getaffinity(0))} CPU(s)"
        _pending.append(f"ignoring {ignored}, because dithc binds ranks and threads itself; {usable}")
    if set(BINDING).intersection(removed):
        with suppress(OSError, AttributeError):  # no /proc, or a runtime without these functions
            for runtime in _runtimes():
                if runtime.omp_get_num_procs() > len(os.sched_getaffinity(0)):
                    _restore(runtime)


def _restore(runtime: Any) -> None:
    """Undo the binding of a runtime that was loaded before dithc, if the number of CPUs identifies them."""
    global _runtime_binds
    bound, number = os.sched_getaffinity(0), runtime.omp_get_num_procs()
    cpus = next((cpus for cpus in _candidates(runtime) if len(cpus) == number and cpus > bound), bound)
    _bind_threads(cpus)
    _runtime_binds = True
    outcome = f"dithc restored {number} CPUs" if cpus > bound else f"dithc cannot identify the {number} CPUs before"
    log.warning(
        "%s bound this process to CPU(s) %s before dithc was imported; %s (fix: unset it, or import dithc before torch)",
        *(" ".join(removed), sorted(bound), outcome),
    )
    if "torch" in sys.modules:
        unbind_team()


def _candidates(runtime: Any) -> Iterator[set[int]]:
    """Yield sets of CPUs that this process may have had: of its cpuset, of the places of the runtime, of its parent."""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(MAX_CPUS))  # the kernel reduces it to the cpuset
    cpuset = os.sched_getaffinity(0)
    os.sched_setaffinity(0, bound)
    yield cpuset
    yield {cpu for cpu in cpuset if any(cpu in place for place in _places(runtime))}
    yield os.sched_getaffinity(os.getppid())


def _places(runtime: Any) -> Iterator[list[int]]:
    import ctypes

    for place in range(runtime.omp_get_num_places()):
        cpus = (ctypes.c_int * runtime.omp_get_place_num_procs(place))()
        runtime.omp_get_place_proc_ids(place, cpus)
        yield list(cpus)


def _runtimes() -> Iterator[Any]:
    import ctypes

    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    for path in {line[line.index("/") :] for line in lines if "/" in line}:
        if Path(path).name.startswith(RUNTIMES):
            with suppress(OSError):
                yield ctypes.CDLL(path, mode=os.RTLD_NOLOAD)


def _bind_threads(cpus: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it ended since the folder was read
            os.sched_setaffinity(int(thread), cpus)


_remove()
