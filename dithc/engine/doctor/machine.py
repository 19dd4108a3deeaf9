"""Checks of the machine: processor and limits, core plan, memory, huge pages, disk."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

from dithc.engine.comm import launch_command
from dithc.engine.doctor.finding import CheckResult, Level
from dithc.engine.hardware import CorePlan, Machine, plan_cores
from dithc.engine.numa import available_bytes

MIB, GIB = 1 << 20, 1 << 30
# A training step of the smallest preset at batch 16 peaks near 2 GiB with its libraries. Less memory is useless.
LEAST_MEMORY_BYTES, COMFORTABLE_MEMORY_BYTES = 2 * GIB, 6 * GIB
# The demo needs about 1 GiB; fine-tuning with its latents and checkpoints tens of GiB.
LEAST_DISK_BYTES, COMFORTABLE_DISK_BYTES = 2 * GIB, 20 * GIB
# MPI and gloo communicate through /dev/shm on a node; containers often have only 64 MiB.
LEAST_SHARED_BYTES = 256 * MIB


def processor(machine: Machine, _: Path) -> list[CheckResult]:
    """Describe the machine, and report a quota or mask that restricts it."""
    findings = [CheckResult("ok", "machine", machine.describe(), facts=asdict(machine))]
    quota, allowed = machine.limits.cpu_quota, len(machine.limits.allowed_cpus)
    if quota is not None and quota < allowed:
        text = f"the control group allows {quota:g} CPU(s) of time, {allowed} CPUs are visible: threads are throttled"
        fix = "assign CPUs to the container (cpuset), or request all used CPUs from the batch system"
        findings.append(CheckResult("warn", "CPU quota", text, fix=fix))
    return findings


def core_plan(machine: Machine, _: Path) -> list[CheckResult]:
    """Return the cores of one rank per die, with reasons; for a described machine also with all its CPUs."""
    found = plan_of_dies(machine)
    findings = [CheckResult("ok", "core plan", _plan_text(found), facts=asdict(found))]
    if machine.described_by:
        every_cpu = tuple(sorted(cpu for core in machine.cores for cpu in core.cpus))
        limits = replace(machine.limits, allowed_cpus=every_cpu, cpu_quota=None)
        whole = plan_of_dies(replace(machine, limits=limits))
        text = f"{machine.described_by} replaces this machine; with all of its CPUs, {_plan_text(whole)}"
        fix = "unset DITHC_MACHINE_FILE, except for tests"
        findings.append(CheckResult("warn", "described machine", text, fix=fix, facts=asdict(whole)))
    return findings


def plan_of_dies(machine: Machine) -> CorePlan:
    return plan_cores(machine, ranks_per_node=max(1, len({core.die for core in machine.visible_cores})))


def _plan_text(core_plan: CorePlan) -> str:
    lines = []
    for rank in core_plan.ranks:
        sizes = "+".join(str(len(cluster)) for cluster in rank.clusters)
        reserved = "".join(
            f", {purpose} on core {' '.join(str(core) for wanted, core in rank.reserved if wanted == purpose)}"
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
        return [CheckResult("warn", "memory", "available memory is unknown", fix="mount /proc")]
    tiers = ", ".join(f"{tier.memory_bytes / GIB:.1f} GiB {tier.kind}" for tier in machine.tiers)
    text = f"{available / GIB:.1f} GiB available; {tiers if len(machine.tiers) > 1 else 'one tier of memory'}"
    facts = {"available_bytes": available, "tiers": [asdict(tier) for tier in machine.tiers]}
    if available < LEAST_MEMORY_BYTES:
        fix = "end other programs, or request more memory (limits of the container or job apply)"
        return [CheckResult("bad", "memory", text, fix=fix, facts=facts)]
    if available < COMFORTABLE_MEMORY_BYTES:
        fix = "use small batches, or activation recomputation"
        return [CheckResult("warn", "memory", text, fix=fix, facts=facts)]
    return [CheckResult("ok", "memory", text, facts=facts)]


def huge_pages(machine: Machine, _: Path) -> list[CheckResult]:
    """Report whether large tensors can use huge pages, and whether reserved pages are on all nodes with CPUs."""
    mode, facts = machine.huge_pages.transparent, asdict(machine.huge_pages)
    text, fix = f"transparent huge pages: {mode}", ""
    if mode == "madvise":
        text += ": set THP_MEM_ALLOC_ENABLE=1 for torch to request them"
    elif mode != "always":
        text += "; large tensors cause more TLB misses"
        fix = "ask the administrator for `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"
    findings = [CheckResult("warn" if fix else "ok", "huge pages", text, fix=fix, facts=facts)]
    reserved = {
        node.index: sum(size * pages for size, pages, _ in node.huge_page_pools) for node in machine.nodes if node.cpus
    }
    without = [node for node, size in reserved.items() if not size]
    if 0 < len(without) < len(reserved):
        text = f"huge pages are reserved on some NUMA nodes and not on node(s) {', '.join(map(str, without))}"
        fix = "reserve the same number on each node: /sys/devices/system/node/node*/hugepages/*/nr_hugepages"
        findings.append(CheckResult("warn", "reserved pages", text, fix=fix, facts={"bytes_by_node": reserved}))
    return findings


def disk(_: Machine, folder: Path, *, shared: Path = Path("/dev/shm")) -> list[CheckResult]:
    """Check the free space for results, and for shared memory of the ranks of a node."""
    free = shutil.disk_usage(folder).free
    text, facts = f"{free / GIB:.1f} GiB free in {folder.resolve()}", {"free_bytes": free}
    if free < LEAST_DISK_BYTES:
        fix = "free space, or work in another folder: a full disk ends a run"
        findings = [CheckResult("bad", "disk", text, fix=fix, facts=facts)]
    elif free < COMFORTABLE_DISK_BYTES:
        fix = "free space before training large models; this is enough for the demo"
        findings = [CheckResult("warn", "disk", text, fix=fix, facts=facts)]
    else:
        findings = [CheckResult("ok", "disk", text, facts=facts)]
    room = launch_command.room(shared)[1]
    if room < LEAST_SHARED_BYTES:
        level: Level = "warn" if room >= 2 * launch_command.RANK_BYTES else "bad"
        text = (
            f"{shared} has {room / MIB:.1f} MiB free: MPICH needs {launch_command.RANK_BYTES / MIB:.1f} MiB per rank, "
            f"fast communication {launch_command.FAST_RANK_BYTES / MIB:.0f} MiB"
        )
        fix = "start the container with more shared memory (docker: --shm-size=1g)"
        findings.append(CheckResult(level, "shared memory", text, fix=fix, facts={"free_bytes": room}))
    return findings
