"""Explanations of scheduler reasons and job states, with fixes."""

from dithc.cluster.queue import Job

# Slurm's reasons of waiting that need a hand (squeue(1), JOB REASON CODES), by how they begin; others pass with time.
IN_VAIN = {
    "PartitionTimeLimit": (
        "asks for more time than the partition allows",
        "lower `machine.max_minutes` of the profile",
    ),
    "PartitionNodeLimit": ("asks for more nodes than the partition allows", "lower `machine.nodes`"),
    "PartitionConfig": (
        "asks for what the partition does not allow",
        "compare the profile with `scontrol show partition`",
    ),
    "PartitionDown": ("the partition is down", "ask the administrator, or set another `slurm_partition`"),
    "PartitionInactive": ("the partition takes no jobs", "ask the administrator, or set another `slurm_partition`"),
    "Nodes required for job are DOWN": (
        "the nodes that could run it are down or drained",
        "`sinfo -R` says why; ask the administrator",
    ),
    "ReqNodeNotAvail": (
        "the nodes it needs are down, drained or reserved",
        "`sinfo -R` says why; ask the administrator",
    ),
    "BadConstraints": ("no node has what it asks for", "compare the profile with `scontrol show node`"),
    "AccountNotAllowed": (
        "the account may not use the partition",
        "set `slurm_account` or `slurm_partition` in the profile",
    ),
    "InvalidAccount": (
        "the account is not known",
        "set `slurm_account` in the profile; `sacctmgr show user $USER -s` lists yours",
    ),
    "InvalidQOS": ("the quality of service is not known", "set `slurm-qos` in the profile"),
    "QOSNotAllowed": (
        "the quality of service may not be used here",
        "set `slurm-qos` or `slurm_partition` in the profile",
    ),
    "JobHeldUser": ("it is held by you", "`scontrol release` it, or `scancel` it"),
    "JobHeldAdmin": ("it is held by the administrator", "ask the administrator"),
    "JobHoldMaxRequeue": ("it was started too often", "look at its log; `scontrol release` it, or `scancel` it"),
    "launch failed requeued held": (
        "its node could not start it, and it is held since",
        "look at the node; `scontrol release` it",
    ),
    "DependencyNeverSatisfied": ("a job that it waits for has failed", "`scancel` it"),
    "MaxMemPerLimit": ("asks for more memory than a limit allows", "lower `resources.<stage>.mem_mb`"),
    "AssocMaxWallDurationPerJobLimit": (
        "asks for more time than your account may",
        "lower `machine.max_minutes` of the profile",
    ),
    "QOSMaxWallDurationPerJobLimit": (
        "asks for more time than the quality of service allows",
        "lower `machine.max_minutes`",
    ),
    "AssocMaxNodePerJobLimit": ("asks for more nodes than your account may", "lower `machine.nodes`"),
    "QOSMaxNodePerJobLimit": ("asks for more nodes than the quality of service allows", "lower `machine.nodes`"),
    "AssocMaxCpuPerJobLimit": (
        "asks for more cores than your account may",
        "lower `machine.nodes` or `machine.cpus_per_rank`",
    ),
    "QOSMaxCpuPerJobLimit": ("asks for more cores than the quality of service allows", "lower `machine.nodes`"),
    "AssocMaxMemPerJob": ("asks for more memory than your account may", "lower `resources.<stage>.mem_mb`"),
    "QOSMaxMemoryPerJob": (
        "asks for more memory than the quality of service allows",
        "lower `resources.<stage>.mem_mb`",
    ),
}

ENDED = {
    "TIMEOUT": (
        "its walltime ended before it had stopped by itself",
        "give it more time: `resources: {<stage>: {runtime: ...}}`, or a longer `machine.max_minutes` if the queue has it; then "
        "start again: what was saved is kept",
    ),
    "DEADLINE": ("the deadline of the job had come", "start again"),
    "OUT_OF_MEMORY": (
        "it took more memory than it had asked for",
        "set `resources: {<stage>: {mem_mb: ...}}` higher, or lower `micro_batch` (or set `recompute: block`), then start again",
    ),
    "CANCELLED": ("somebody cancelled it (you, or the administrator)", "start again: what was saved is kept"),
    "NODE_FAIL": ("its node failed and it was not put back into the queue", "start again: what was saved is kept"),
    "BOOT_FAIL": ("its node did not boot", "start again; tell the administrator which node it was"),
    "PREEMPTED": ("a job of higher priority took its place", "start again: what was saved is kept"),
    "REVOKED": ("another cluster took it over", "start again"),
}
FAILED = {
    2: (
        "something is wrong with what it was given, and will be next time",
        "read the last lines of its log; correct it, then start again",
    ),
    76: ("another training works on the same run", "wait for it, or end it; then start again"),
    137: (
        "one of its processes was killed: most often for lack of memory",
        "set `resources: {<stage>: {mem_mb: ...}}` higher, or lower `micro_batch`; then start again: what was saved is kept",
    ),
}
OTHERWISE = (
    "its command failed",
    "read the last lines of its log, correct what they say, then start again: what was saved is kept",
)


def waits_in_vain(job: Job) -> tuple[str, str] | None:
    """Return why a waiting job cannot start, and the fix; None if it only has to wait."""
    if not job.waits:
        return None
    return next((words for begin, words in IN_VAIN.items() if job.reason.startswith(begin)), None)


def ended_because(job: Job) -> tuple[str, str]:
    """Return why a job failed, and the fix."""
    return ENDED.get(job.state) or FAILED.get(job.status or 0) or OTHERWISE
