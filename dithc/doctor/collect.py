"""Runs every check, in the order of a person's questions."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dithc.doctor import machine, parallel, software
from dithc.doctor.finding import Finding, Level
from dithc.hardware import Machine, discover

Check = Callable[[Machine, Path], list[Finding]]

CHECKS: tuple[Check, ...] = (
    machine.processor,
    machine.core_plan,
    machine.memory,
    machine.huge_pages,
    machine.disk,
    software.kernels,
    software.torch_runtimes,
    software.compilers,
    software.versions,
    parallel.mpi,
    parallel.slurm,
)


def collect(folder: Path = Path(), *, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Everything found on this machine, for work in `folder`; a check that breaks is a finding itself."""
    here = discover()
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check(here, folder)
        except Exception as error:
            findings.append(
                Finding(
                    level="warn",
                    topic=check.__name__.replace("_", " "),
                    text=f"this check broke: {error!r}",
                    remedy="report it, with this output",
                )
            )
    return findings


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level among the findings."""
    levels = {finding.level for finding in findings}
    return "bad" if "bad" in levels else "warn" if "warn" in levels else "ok"
