"""Checks of the machine: processor and limits, core plan, memory and its tiers, huge pages, disk."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dithc.core.logging import UserError
from dithc.core.units import GIB, GIGA, MIB
from dithc.engine.comm.launch import shm_cleanup
from dithc.engine.doctor.finding import CheckResult, Level
from dithc.engine.hardware import CorePlan, Machine, plan_cores
from dithc.engine.memory import Tiers, tier_specs
from dithc.engine.numa import available_bytes

Limits = tuple[tuple[int, Level, str], ...]  # bytes below which a level and its fix apply, ascending
# A training step of the smallest preset at batch 16 peaks near 2 GiB with its libraries. Less memory is useless.
MEMORY_LIMITS: Limits = (
    (2 * GIB, "error", "end other programs, or request more memory (limits of the container or job apply)"),
    (6 * GIB, "warning", "use small batches, or activation recomputation"),
)
# The demo needs about 1 GiB; fine-tuning with its latents and checkpoints tens of GiB.
DISK_LIMITS: Limits = (
    (2 * GIB, "error", "free space, or work in another folder: a full disk ends a run"),
    (20 * GIB, "warning", "free space before training large models; this is enough for the demo"),
)
# MPI and gloo communicate through /dev/shm on a node; containers often have only 64 MiB.
MIN_SHARED_BYTES = 256 * MIB


def processor(machine: Machine, _: Path) -> list[CheckResult]:
    """Describe the machine, and report a quota or mask that restricts it."""
    findings = [CheckResult("ok", "machine", machine.describe(), properties=asdict(machine))]
    quota, allowed = machine.limits.cpu_quota, len(machine.limits.allowed_cpus)
    if quota is not None and quota < allowed:
        text = f"the control group allows {quota:g} CPU(s) of time, {allowed} CPUs are visible: threads are throttled"
        fix = "assign CPUs to the container (cpuset), or request all used CPUs from the batch system"
        findings.append(CheckResult("warning", "CPU quota", text, fix=fix))
    return findings


def core_plan(machine: Machine, _: Path) -> list[CheckResult]:
    """Return the cores of one rank per die, with reasons; for a described machine also with all its CPUs."""
    plan = plan_of_dies(machine)
    findings = [CheckResult("ok", "core plan", _plan_text(plan), properties=asdict(plan))]
    if machine.described_by:
        every_cpu = tuple(sorted(cpu for core in machine.cores for cpu in core.cpus))
        limits = replace(machine.limits, allowed_cpus=every_cpu, cpu_quota=None)
        whole = plan_of_dies(replace(machine, limits=limits))
        text = f"{machine.described_by} replaces this machine; with all of its CPUs, {_plan_text(whole)}"
        fix = "unset DITHC_MACHINE_FILE, except for tests"
        findings.append(CheckResult("warning", "described machine", text, fix=fix, properties=asdict(whole)))
    return findings


def plan_of_dies(machine: Machine) -> CorePlan:
    return plan_cores(machine, ranks_per_node=max(1, len({core.die for core in machine.visible_cores})))


def _plan_text(core_plan: CorePlan) -> str:
    lines = []
    for rank in core_plan.ranks:
        sizes = "+".join(str(len(cluster)) for cluster in rank.clusters)
        reserved = "".join(
            f", {purpose} on core {' '.join(str(core) for reserved_for, core in rank.reserved if reserved_for == purpose)}"
            for purpose in dict(rank.reserved)
        )
        lines.append(
            f"rank {rank.rank}: {rank.num_threads} compute thread(s), cores {rank.cores[0]}-{rank.cores[-1]}"
            f"{f' ({sizes} by cluster)' if len(rank.clusters) > 1 else ''}{'' if rank.pin else ', not bound'}{reserved}"
        )
    return "\n".join(["one rank per die:", *lines, *core_plan.reasons])


def memory(machine: Machine, _: Path) -> list[CheckResult]:
    available = available_bytes()
    if available is None:
        return [CheckResult("warning", "memory", "available memory is unknown", fix="mount /proc")]
    tiers = ", ".join(f"{tier.memory_bytes / GIB:.1f} GiB {tier.kind}" for tier in machine.tiers)
    text = f"{available / GIB:.1f} GiB available; {tiers if len(machine.tiers) > 1 else 'one tier of memory'}"
    properties = {"available_bytes": available, "tiers": [asdict(tier) for tier in machine.tiers]}
    level, fix = _limit_level(available, MEMORY_LIMITS)
    return [CheckResult(level, "memory", text, fix=fix, properties=properties)]


def _limit_level(num_bytes: int, limits: Limits) -> tuple[Level, str]:
    return next(((level, fix) for limit, level, fix in limits if num_bytes < limit), ("ok", ""))


def memory_tiers(machine: Machine, _: Path) -> list[CheckResult]:
    """Report each tier of a training run in one process, with the measured page size and copy rate."""
    sizes: dict[str, int] = {tier.kind: tier.memory_bytes for tier in machine.tiers}
    try:
        tiers = Tiers(tier_specs(machine))
    except UserError as error:
        fix = "reinstall the package; see the cause in topic `kernels`"
        return [CheckResult("warning", "memory tiers", str(error).splitlines()[0], fix=fix)]
    properties, lines = dict[str, dict[str, Any]](), list[str]()
    for tier in tiers:
        name, nodes, rate = tier.spec.name, tier.spec.nodes, tier.copy_bytes_per_second
        size = tier.spec.budget_bytes or sizes.get(name)
        pages = {"pages": tier.huge_pages, "copy_bytes_per_second": rate}
        properties[name] = {"kind": tier.spec.kind, "nodes": nodes, "bytes": size, **pages}
        size_text = f"{size / GIB:.1f} GiB" if size else "of unknown size"
        location = f" on node(s) {', '.join(map(str, nodes))}" if nodes else ""
        kind = "no" if tier.huge_pages == "none" else tier.huge_pages
        lines.append(f"{name} {size_text}{location}, {kind} huge pages, copies at {rate / GIGA:.1f} GB/s")
    tiers.close()
    return [CheckResult("ok", "memory tiers", "; ".join(lines), properties=properties)]


def huge_pages(machine: Machine, _: Path) -> list[CheckResult]:
    """Report whether large tensors can use huge pages, and whether reserved pages are on all nodes with CPUs."""
    mode, properties = machine.huge_pages.transparent, asdict(machine.huge_pages)
    text, fix = f"transparent huge pages: {mode}", ""
    if mode == "madvise":
        text += ": set THP_MEM_ALLOC_ENABLE=1 for torch to request them"
    elif mode != "always":
        text += "; large tensors cause more TLB misses"
        fix = "ask the administrator for `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"
    findings = [CheckResult("warning" if fix else "ok", "huge pages", text, fix=fix, properties=properties)]
    reserved = {
        node.index: sum(size * pages for size, pages, _ in node.huge_page_pools) for node in machine.nodes if node.cpus
    }
    without = [node for node, size in reserved.items() if not size]
    if 0 < len(without) < len(reserved):
        text = f"huge pages are reserved on some NUMA nodes and not on node(s) {', '.join(map(str, without))}"
        fix = "reserve the same number on each node: /sys/devices/system/node/node*/hugepages/*/nr_hugepages"
        findings.append(CheckResult("warning", "reserved pages", text, fix=fix, properties={"bytes_by_node": reserved}))
    return findings


def disk(_: Machine, folder: Path, *, shared: Path = Path("/dev/shm")) -> list[CheckResult]:
    """Check the free space for results, and for shared memory of the ranks of a node."""
    free = shutil.disk_usage(folder).free
    text, (level, fix) = f"{free / GIB:.1f} GiB free in {folder.resolve()}", _limit_level(free, DISK_LIMITS)
    findings = [CheckResult(level, "disk", text, fix=fix, properties={"free_bytes": free})]
    shared_free = shm_cleanup.size_and_free(shared)[1]
    if shared_free < MIN_SHARED_BYTES:
        level = "warning" if shared_free >= 2 * shm_cleanup.RANK_BYTES else "error"
        text = (
            f"{shared} has {shared_free / MIB:.1f} MiB free: MPICH needs {shm_cleanup.RANK_BYTES / MIB:.1f} MiB per rank, "
            f"fast communication {shm_cleanup.FAST_RANK_BYTES / MIB:.0f} MiB"
        )
        fix = "start the container with more shared memory (docker: --shm-size=1g)"
        findings.append(CheckResult(level, "shared memory", text, fix=fix, properties={"free_bytes": shared_free}))
    return findings
