"""List of disabled features on this machine with their reasons, collected from the packages that decide."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from dithc.core.caches import TUNING_VARIABLE
from dithc.core.logging import UserError
from dithc.engine.doctor.finding import CheckResult
from dithc.engine.doctor.machine import plan_of_dies
from dithc.engine.hardware import Machine


def switched_off(machine: Machine, _: Path, *, environment: Mapping[str, str] = os.environ) -> list[CheckResult]:
    """Return every feature that is unavailable here, with its reason. Harmful states also have a separate check."""
    disabled = {**_kernels(environment), **_machine_features(machine), **_tools(environment)}
    text = "\n".join(["", *(f"{feature}: {cause}" for feature, cause in disabled.items())]) if disabled else "nothing"
    return [CheckResult("ok", "switched off", text.lstrip("\n"), properties=dict(disabled))]


def _kernels(environment: Mapping[str, str]) -> dict[str, str]:
    from dithc.engine import hcops, native

    disabled: dict[str, str] = {}
    if native.library() is None:
        disabled["C kernels"] = native.load_library().reason
    elif name := environment.get(native.ISA_VARIABLE):
        disabled["better instruction sets"] = f"{native.ISA_VARIABLE}={name}"
    try:
        rows = hcops.describe_kernels()
    except UserError as error:
        return disabled | {"operators": str(error).splitlines()[0]}
    if native.library() is not None:
        for row in rows:
            if row["backend"] != "c":
                disabled[f"C kernel of {row['op']}"] = row["reason"]
    if environment.get(TUNING_VARIABLE) == "off":
        disabled["tuned products"] = f"{TUNING_VARIABLE}=off"
    elif not any("tuning file" in row["reason"] for row in rows):
        disabled["tuned products"] = "no tuning for this machine; run `dithc tune-kernels`"
    return disabled


def _machine_features(machine: Machine) -> dict[str, str]:
    disabled: dict[str, str] = {}
    core_plan = plan_of_dies(machine)
    if not all(rank.pin for rank in core_plan.ranks):
        disabled["binding of ranks to cores"] = core_plan.reasons[0]
    for feature, _, cause in (reason.partition(": ") for reason in core_plan.reasons):
        if feature.startswith("no core reserved"):
            disabled[feature.replace("no core reserved", "reserved core")] = cause
    if machine.huge_pages.transparent not in ("always", "madvise"):
        disabled["transparent huge pages"] = f"the kernel reports {machine.huge_pages.transparent}"
    if not any(reserved for _, reserved, _ in machine.huge_pages.pools):
        disabled["reserved huge pages"] = "none are reserved (nr_hugepages is 0)"
    if sum(bool(node.cpus) for node in machine.nodes) < 2:
        disabled["placement on NUMA nodes"] = "the machine has fewer than two nodes with CPUs"
    if len(machine.tiers) < 2:
        only = f"all memory is {machine.tiers[0].kind}" if machine.tiers else "the kernel reports none"
        disabled["tiers of memory"] = only
    return disabled


def _tools(environment: Mapping[str, str]) -> dict[str, str]:
    from dithc.engine.comm.launch import launch_command

    disabled: dict[str, str] = {}
    if not any(map(shutil.which, (environment.get("CXX", "g++"), "clang++", "c++"))):
        disabled["torch.compile"] = "no C++ compiler"
    try:
        launch_command.find_mpiexec()
    except UserError:
        disabled["several ranks on this machine"] = "no mpiexec"
    return disabled
