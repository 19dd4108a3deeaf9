"""Explanations of scheduler reasons and job states, with fixes."""

from dithc.core.processes import HELD
from dithc.engine.scheduler.queue import SchedulerJob


def _table(text: str) -> dict[str, tuple[str, str]]:
    """Read lines of the form `reason | explanation | fix`."""
    rows = [line.split(" | ") for line in text.strip().splitlines()]
    return {reason: (explanation, fix) for reason, explanation, fix in rows}


# Prefixes of Slurm's reasons that do not resolve without intervention (squeue(1), JOB REASON CODES).
BLOCKED = _table("""
PartitionTimeLimit | requests more time than the partition allows | lower `machine.max_walltime_minutes` of the profile
PartitionNodeLimit | requests more nodes than the partition allows | lower `machine.nodes`
PartitionConfig | violates a limit of the partition | compare the profile with `scontrol show partition`
PartitionDown | the partition is down | ask the administrator, or set another `slurm_partition`
PartitionInactive | the partition accepts no jobs | ask the administrator, or set another `slurm_partition`
Nodes required for job are DOWN | the required nodes are down or drained | `sinfo -R` shows the cause; ask the administrator
ReqNodeNotAvail | the required nodes are down, drained or reserved | `sinfo -R` shows the cause; ask the administrator
BadConstraints | no node meets the request | compare the profile with `scontrol show node`
AccountNotAllowed | the account may not use the partition | set `slurm_account` or `slurm_partition` in the profile
InvalidAccount | the account does not exist | set `slurm_account` in the profile; list yours: `sacctmgr show user $USER -s`
InvalidQOS | the quality of service does not exist | set `slurm-qos` in the profile
QOSNotAllowed | the quality of service is not allowed here | set `slurm-qos` or `slurm_partition` in the profile
JobHeldUser | you hold it | `scontrol release` it, or `scancel` it
JobHeldAdmin | the administrator holds it | ask the administrator
JobHoldMaxRequeue | it was started too often | read its log; `scontrol release` it, or `scancel` it
launch failed requeued held | its node could not start it, and Slurm holds it | check the node; `scontrol release` it
DependencyNeverSatisfied | a job that it depends on has failed | `scancel` it
MaxMemPerLimit | requests more memory than a limit allows | lower `resources.<stage>.mem_mb`
AssocMaxWallDurationPerJobLimit | requests more time than your account allows | lower `machine.max_walltime_minutes`
QOSMaxWallDurationPerJobLimit | requests more time than the quality of service allows | lower `machine.max_walltime_minutes`
AssocMaxNodePerJobLimit | requests more nodes than your account allows | lower `machine.nodes`
QOSMaxNodePerJobLimit | requests more nodes than the quality of service allows | lower `machine.nodes`
AssocMaxCpuPerJobLimit | requests more cores than your account allows | lower `machine.nodes` or `machine.cpus_per_rank`
QOSMaxCpuPerJobLimit | requests more cores than the quality of service allows | lower `machine.nodes`
AssocMaxMemPerJob | requests more memory than your account allows | lower `resources.<stage>.mem_mb`
QOSMaxMemoryPerJob | requests more memory than the quality of service allows | lower `resources.<stage>.mem_mb`
""")

RESTART = "start again: checkpoints are kept"
END_STATES = {
    "TIMEOUT": (
        "its walltime ended before it stopped",
        "increase `resources: {<stage>: {runtime: ...}}`, or `machine.max_walltime_minutes` if the queue allows more; then "
        + RESTART,
    ),
    "DEADLINE": ("the deadline of the job passed", RESTART),
    "OUT_OF_MEMORY": (
        "it used more memory than it requested",
        "increase `resources: {<stage>: {mem_mb: ...}}`, lower `micro_batch_size` or set `activation_checkpointing: block`; then "
        + RESTART,
    ),
    "CANCELLED": ("a user or the administrator canceled it", RESTART),
    "NODE_FAIL": ("its node failed and it was not requeued", RESTART),
    "BOOT_FAIL": ("its node did not boot", "start again; report the node to the administrator"),
    "PREEMPTED": ("a job of higher priority preempted it", RESTART),
    "REVOKED": ("another cluster of the federation started it", RESTART),
}
EXIT_STATUSES = {
    2: ("its input or configuration is invalid", "read the last lines of its log; correct the cause, then start again"),
    HELD: ("another training run writes the same checkpoints", "wait for it, or end it; then start again"),
    137: (
        "SIGKILL ended one of its processes, most often for lack of memory",
        "increase `resources: {<stage>: {mem_mb: ...}}`, or lower `micro_batch_size`; then " + RESTART,
    ),
}
DEFAULT_EXPLANATION = ("its command failed", "read the last lines of its log, correct the cause, then " + RESTART)


def explain_blocked(job: SchedulerJob) -> tuple[str, str] | None:
    """Return why a waiting job cannot start, and the fix; None if it only has to wait."""
    if not job.waits:
        return None
    return next((entry for prefix, entry in BLOCKED.items() if job.reason.startswith(prefix)), None)


def explain_end(job: SchedulerJob) -> tuple[str, str]:
    return END_STATES.get(job.state) or EXIT_STATUSES.get(job.status or 0) or DEFAULT_EXPLANATION
