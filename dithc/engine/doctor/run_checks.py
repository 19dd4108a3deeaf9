"""Execution of all checks, in the order of a user's questions."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dithc.core.logging import UserError
from dithc.engine.doctor import disabled_features, machine, mpi_slurm, software
from dithc.engine.doctor.finding import CheckResult, Level
from dithc.engine.hardware import Machine, discover_machine

Check = Callable[[Machine, Path], list[CheckResult]]

CHECKS: tuple[Check, ...] = (
    machine.processor,
    machine.core_plan,
    machine.memory,
    machine.huge_pages,
    machine.memory_tiers,
    machine.disk,
    software.kernels,
    software.torch_allocator,
    software.threads,
    software.torch_runtimes,
    software.binding,
    software.compilers,
    software.versions,
    mpi_slurm.mpi,
    mpi_slurm.slurm,
    mpi_slurm.allocation,
    disabled_features.switched_off,
    software.installed_plugins,
)


def run_checks(folder: Path = Path(), *, checks: Sequence[Check] = CHECKS) -> list[CheckResult]:
    """Return all findings on this machine, for work in `folder`. A check that raises becomes a finding."""
    findings: list[CheckResult] = []
    try:
        present = discover_machine()
    except UserError as error:  # the description is invalid; the checks inspect the machine itself
        present = discover_machine(described=False)
        fix = "correct the file in DITHC_MACHINE_FILE, or unset it"
        findings.append(CheckResult("error", "described machine", str(error), fix=fix))
    for check in checks:
        try:
            findings += check(present, folder)
        except Exception as error:
            topic, text = check.__name__.replace("_", " "), f"this check failed: {error!r}"
            findings.append(CheckResult("warning", topic, text, fix="report it, with this output"))
    return findings


def worst_level(findings: Sequence[CheckResult]) -> Level:
    levels = {finding.level for finding in findings}
    return "error" if "error" in levels else "warning" if "warning" in levels else "ok"
