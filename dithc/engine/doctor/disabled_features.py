"""List of disabled features on this machine with their reasons, collected from the packages that decide."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from dithc.core.logging import UserError
from dithc.engine.doctor.finding import CheckResult
from dithc.engine.doctor.machine import plan_of_dies
from dithc.engine.hardware import Machine

TUNING_VARIABLE = "DITHC_TUNING_FOLDER"


def switched_off(machine: Machine, _: Path, *, environment: Mapping[str, str] = os.environ) -> list[CheckResult]:
    """Return every feature that is unavailable here, with its reason. Harmful states also have a separate check."""
    off = {**_kernels(environment), **_of_machine(machine), **_tools(environment)}
    text = "\n".join(["", *(f"{what}: {why}" for what, why in off.items())]) if off else "nothing"
    return [CheckResult("ok", "switched off", text.lstrip("\n"), facts=dict(off))]


def _kernels(environment: Mapping[str, str]) -> dict[str, str]:
    from dithc.engine import hcops, native

    off: dict[str, str] = {}
    if native.library() is None:
        off["C kernels"] = native.load_library().reason
    elif name := environment.get(native.ISA_VARIABLE):
        off["better instruction sets"] = f"{native.ISA_VARIABLE}={name}"
    try:
        rows = hcops.describe_kernels()
    except UserError as error:
        return off | {"operators": str(error).splitlines()[0]}
    if native.library() is not None:
        for row in rows:
            if row["backend"] != "c":
                off[f"C kernel of {row['op']}"] = row["why"]
    if environment.get(TUNING_VARIABLE) == "off":
        off["tuned products"] = f"{TUNING_VARIABLE}=off"
    elif not any("tuning file" in row["why"] for row in rows):
        off["tuned products"] = "no tuning for this machine; run `dithc tune-kernels`"
    return off


def _of_machine(machine: Machine) -> dict[str, str]:
    off: dict[str, str] = {}
    core_plan = plan_of_dies(machine)
    if not all(rank.pin for rank in core_plan.ranks):
        off["binding of ranks to cores"] = core_plan.reasons[0]
    for what, _, why in (reason.partition(": ") for reason in core_plan.reasons):
        if what.startswith("no core reserved"):
            off[what.replace("no core reserved", "reserved core")] = why
    if machine.huge_pages.transparent not in ("always", "madvise"):
        off["transparent huge pages"] = f"the kernel reports {machine.huge_pages.transparent}"
    if not any(reserved for _, reserved, _ in machine.huge_pages.pools):
        off["reserved huge pages"] = "none are reserved (nr_hugepages is 0)"
    if sum(bool(node.cpus) for node in machine.nodes) < 2:
        off["placement on NUMA nodes"] = "the machine has fewer than two nodes with CPUs"
    if len(machine.tiers) < 2:
        only = f"all memory is {machine.tiers[0].kind}" if machine.tiers else "the kernel reports none"
        off["tiers of memory"] = only
    return off


def _tools(environment: Mapping[str, str]) -> dict[str, str]:
    from dithc.engine.comm import launch_command

    off: dict[str, str] = {}
    if not any(map(shutil.which, (environment.get("CXX", "g++"), "clang++", "c++"))):
        off["torch.compile"] = "no C++ compiler"
    try:
        launch_command.find_mpiexec()
    except UserError:
        off["several ranks on this machine"] = "no mpiexec"
    return off
